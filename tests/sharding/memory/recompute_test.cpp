// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/memory/recompute.h"
#include "sharding/memory/saved_tensors.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace meshard {
namespace {

at::Tensor waves(c10::IntArrayRef shape, double start)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble).mul(0.37).add(start).sin_().view(shape);
}

/// Bytes that autograd saves while it lives, parameters included.
struct SavedBytes {
    std::int64_t bytes = 0;
    SavedTensorHooks hooks{[this](const at::Tensor& tensor) -> UnpackSaved {
        bytes += local_of(tensor).nbytes();
        return {};
    }};
};

/// Two layers of a wide network with dropout.
struct Wide {
    at::Tensor first = waves({6, 40}, 0.1).requires_grad_(), second = waves({40, 6}, 0.2).requires_grad_();
    double dropout = 0;

    at::Tensor operator()(const at::Tensor& x) const
    {
        const auto hidden = at::tanh(at::matmul(x, first));
        return at::matmul(dropout > 0 ? at::dropout(hidden, dropout, true) : hidden, second);
    }
};

struct Result {
    at::Tensor output, x, first, second;
};

Result run(const at::Tensor& input, double dropout, bool checkpointed, int depth)
{
    Wide wide;
    wide.dropout = dropout;
    const auto x = input.detach().clone().requires_grad_();
    at::manual_seed(7);
    std::function<at::Tensor(const at::Tensor&)> fn = wide;
    for (int i = 0; i < depth; ++i) {
        const auto inner = fn;
        fn = [inner, checkpointed](const at::Tensor& t) {
            const auto once = checkpointed ? checkpoint(inner, t) : inner(t);
            return at::sin(checkpointed ? checkpoint(inner, once) : inner(once));
        };
    }
    const auto output = fn(x);
    at::rand({3});  // what is drawn in between must not matter
    output.pow(2).sum().backward();
    return {output.detach(), x.grad(), wide.first.grad(), wide.second.grad()};
}

void expect_same_result(const Result& found, const Result& expected)
{
    EXPECT_TRUE(at::equal(found.output, expected.output));
    EXPECT_TRUE(at::equal(found.x, expected.x));
    EXPECT_TRUE(at::equal(found.first, expected.first));
    EXPECT_TRUE(at::equal(found.second, expected.second));
}

TEST(Checkpoint, GivesTheSameBits)
{
    for (const int depth : {1, 2, 3})
        expect_same_result(run(waves({5, 6}, 0), 0, true, depth), run(waves({5, 6}, 0), 0, false, depth));
}

TEST(Checkpoint, DrawsTheSameRandomNumbersAgain)
{
    for (const int depth : {1, 2})
        expect_same_result(run(waves({5, 6}, 0), 0.4, true, depth), run(waves({5, 6}, 0), 0.4, false, depth));
}

TEST(Checkpoint, LeavesTheGeneratorWhereBackwardFoundIt)
{
    at::manual_seed(3);
    Wide wide;
    wide.dropout = 0.5;
    const auto output = checkpoint([&](const at::Tensor& x) { return wide(x); }, waves({5, 6}, 0));
    const auto generator = at::detail::getDefaultCPUGenerator();
    const auto before = generator.get_state();

    output.sum().backward();

    EXPECT_TRUE(at::equal(generator.get_state(), before));
}

TEST(Checkpoint, KeepsNothingButTheInputs)
{
    Wide wide;
    const auto x = waves({5, 6}, 0).requires_grad_();
    std::int64_t whole = 0, checkpointed = 0;
    {
        SavedBytes saved;
        wide(x);
        whole = saved.bytes;
    }
    {
        SavedBytes saved;
        checkpoint([&](const at::Tensor& t) { return wide(t); }, x);
        checkpointed = saved.bytes;
    }
    EXPECT_GE(whole, static_cast<std::int64_t>(8 * (5 * 6 + 2 * 5 * 40)));
    EXPECT_EQ(checkpointed, 8 * 5 * 6);
}

TEST(Checkpoint, TakesSeveralInputsAndOutputsSomeWithoutGradient)
{
    const auto both = [&](bool checkpointed) {
        auto a = waves({4}, 0).requires_grad_(), c = waves({4}, 2).requires_grad_();
        const auto b = waves({4}, 1), index = at::tensor({3, 1, 0, 2});
        const CheckpointFunction fn = [](const std::vector<at::Tensor>& in) {
            return std::vector<at::Tensor>{at::exp(in[0]) * in[1], in[2].index_select(0, in[3]) * in[0], in[1] * 2};
        };
        const std::vector<at::Tensor> inputs{a, b, c, index};
        const auto out = checkpointed ? checkpoint(fn, inputs) : fn(inputs);
        EXPECT_FALSE(out[2].requires_grad());
        (out[0].sum() + out[1].pow(3).sum() + out[2].sum()).backward();
        EXPECT_FALSE(b.grad().defined());
        return std::vector<at::Tensor>{a.grad(), c.grad()};
    };
    const auto found = both(true), expected = both(false);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(found[i], expected[i]));
}

TEST(Checkpoint, RunsAgainForEveryBackwardThroughIt)
{
    int runs = 0;
    auto x = waves({4}, 0).requires_grad_();
    const auto y = checkpoint(
        [&](const at::Tensor& t) {
            ++runs;
            return t.exp().tanh();
        },
        x);
    EXPECT_EQ(runs, 1);
    y.sum().backward({}, /*retain_graph=*/true);
    const auto once = x.grad().clone();
    EXPECT_EQ(runs, 2);

    y.sum().backward();

    EXPECT_EQ(runs, 3);
    EXPECT_TRUE(tensors_near(x.grad(), once * 2, 1e-15));
}

TEST(Checkpoint, HasSecondDerivatives)
{
    const auto second = [](bool checkpointed) {
        auto x = waves({4}, 0).requires_grad_();
        const std::function<at::Tensor(const at::Tensor&)> fn = [](const at::Tensor& t) { return t.exp().tanh() * t; };
        const auto y = checkpointed ? checkpoint(fn, x) : fn(x);
        const auto first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
        first.pow(2).sum().backward();
        return x.grad();
    };
    EXPECT_TRUE(tensors_near(second(true), second(false), 1e-14));
}

TEST(Checkpoint, TakesDerivativesInsideTheFunction)
{
    const auto residual = [](bool checkpointed) {
        auto x = waves({4}, 0).requires_grad_();
        auto w = waves({4}, 1).requires_grad_();
        const std::function<at::Tensor(const at::Tensor&)> fn = [&](const at::Tensor& t) {
            const auto u = at::tanh(t * w);
            return torch::autograd::grad({u.sum()}, {t}, {}, true, true)[0] - u;
        };
        (checkpointed ? checkpoint(fn, x) : fn(x)).pow(2).sum().backward();
        return std::vector<at::Tensor>{x.grad(), w.grad()};
    };
    const auto found = residual(true), expected = residual(false);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(tensors_near(found[i], expected[i], 1e-14));
}

TEST(Checkpoint, RefusesAFunctionThatChanges)
{
    int runs = 0;
    auto x = waves({4}, 0).requires_grad_();
    const auto y = checkpoint([&](const at::Tensor& t) { return ++runs == 1 ? t.exp() : t.exp().exp(); }, x);
    EXPECT_THROW(y.sum().backward(), InvalidInput);
}

TEST(Checkpoint, NoticesAnInputThatWasWrittenTo)
{
    auto x = waves({4}, 0).requires_grad_();
    auto between = x * 2;
    const auto y = checkpoint([](const at::Tensor& t) { return t.exp(); }, between);
    {
        const at::NoGradGuard no_grad;
        between.add_(1);
    }
    EXPECT_ANY_THROW(y.sum().backward());
}

TEST(Checkpoint, RecordsNothingWithoutGradients)
{
    const at::NoGradGuard no_grad;
    const auto x = waves({4}, 0).requires_grad_();
    EXPECT_FALSE(checkpoint([](const at::Tensor& t) { return t.exp(); }, x).requires_grad());
}

TEST(Checkpoint, ReplaysTheCollectivesOfShardedTensors)
{
    for (const int ranks : {1, 2, 3, 5}) {
        run_ranks(ranks, [&](const auto& mesh) {
            const auto rank = mesh->coordinate(0);
            const auto train = [&](bool checkpointed) {
                torch::nn::Linear inner(3, 4), outer(4, 2);
                inner->to(at::kDouble);
                outer->to(at::kDouble);
                {
                    const at::NoGradGuard no_grad;
                    inner->weight.copy_(waves({4, 3}, 0.3));
                    inner->bias.copy_(waves({4}, 0.4));
                    outer->weight.copy_(waves({2, 4}, 0.5));
                    outer->bias.copy_(waves({2}, 0.6));
                }
                torch::nn::Sequential net(inner, outer);
                const auto replicated = replicate(*net, mesh);
                auto x = from_local(waves({rank == 1 ? 0 : rank + 2, 3}, rank), mesh, {Shard(0)}).requires_grad_();
                const std::function<at::Tensor(const at::Tensor&)> block = [&](const at::Tensor& t) {
                    const auto hidden = inner->forward(t);
                    return at::tanh(hidden - hidden.mean(0, true));  // a mean over the cut dimension
                };
                const auto hidden = checkpointed ? checkpoint(block, x) : block(x);
                mesh->counter().reset();
                outer->forward(hidden).pow(2).mean().backward();
                std::vector<at::Tensor> results{full_tensor(x.grad())};
                for (const auto& parameter : net->parameters()) results.push_back(parameter.grad());
                return results;
            };
            const auto found = train(true), expected = train(false);
            ASSERT_EQ(found.size(), expected.size());
            for (std::size_t i = 0; i < found.size(); ++i) {
                EXPECT_FALSE(is_sharded(found[i]));
                EXPECT_TRUE(tensors_near(found[i], expected[i], 1e-14))
                    << "gradient " << i << " on " << ranks << " ranks";
            }
        });
    }
}

TEST(Checkpoint, DrawsTheSameMasksForShardedTensorsAgain)
{
    for (const int ranks : {1, 2, 3}) {
        run_ranks(ranks, [&](const auto& mesh) {
            // Where the mask is nought, so is the gradient: one drawn anew in backward shows.
            auto x =
                from_local(at::ones({20 + mesh->coordinate(0), 8}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
            const auto y = checkpoint([](const at::Tensor& t) { return at::dropout(t.exp(), 0.5, true).exp(); }, x);
            at::dropout(x.detach(), 0.5, true);  // the generator goes on
            y.sum().backward();
            const auto kept = full_tensor(y.detach()).gt(1);
            EXPECT_TRUE(at::equal(full_tensor(x.grad()).gt(0), kept));
            EXPECT_TRUE(kept.any().template item<bool>());
            EXPECT_FALSE(kept.all().template item<bool>());
        });
    }
}

/// Autocast as Python's context has it, on this thread.
class AutocastRegion {
public:
    AutocastRegion(at::ScalarType type, bool is_caching)
        : was_caching_(at::autocast::is_autocast_cache_enabled()),
          type_before_(at::autocast::get_autocast_dtype(at::kCPU))
    {
        at::autocast::increment_nesting();
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, type);
        at::autocast::set_autocast_cache_enabled(is_caching);
    }
    ~AutocastRegion()
    {
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::set_autocast_dtype(at::kCPU, type_before_);
        at::autocast::set_autocast_cache_enabled(was_caching_);
    }

private:
    bool was_caching_;
    at::ScalarType type_before_;
};

TEST(Checkpoint, ComputesAgainInTheTypeOfAutocastWithTheWeightsOfTheStep)
{
    const auto trained = [](at::ScalarType type, bool is_caching, bool checkpointed) {
        auto weight = waves({6, 6}, 0.1).to(at::kFloat).requires_grad_();
        const auto x = waves({5, 6}, 0.3).to(at::kFloat);
        const std::function<at::Tensor(const at::Tensor&)> twice = [&](const at::Tensor& t) {
            return at::matmul(at::tanh(at::matmul(t, weight)), weight);
        };
        for (int step = 0; step < 3; ++step) {
            at::Tensor output;
            {
                const AutocastRegion autocast(type, is_caching);
                output =
                    checkpointed ? checkpoint(twice, x.clone().requires_grad_()) : twice(x.clone().requires_grad_());
            }
            EXPECT_EQ(output.scalar_type(), type);
            output.to(at::kFloat).pow(2).sum().backward();
            const at::NoGradGuard no_grad;
            weight.sub_(weight.grad(), 0.1);
            weight.mutable_grad().zero_();
        }
        return weight.detach();
    };
    const auto exact = trained(at::kFloat, false, false);
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        for (const bool is_caching : {false, true}) {
            const auto stored = trained(type, is_caching, false);
            EXPECT_TRUE(at::equal(trained(type, is_caching, true), stored)) << type << " caching " << is_caching;
            EXPECT_TRUE(tensors_near(stored, exact, 0.03)) << type << " caching " << is_caching;
        }
    }
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
}

TEST(SavedTensors, GoThroughTheInnermostHooks)
{
    std::vector<std::string> calls;
    const auto named = [&](const char* name) {
        return [&calls, name](const at::Tensor& tensor) -> UnpackSaved {
            calls.push_back(name);
            return [tensor] { return tensor; };
        };
    };
    auto x = waves({3}, 0).requires_grad_();
    const SavedTensorHooks outer(named("outer"));
    auto y = x.exp();
    {
        const SavedTensorHooks inner(named("inner"));
        y = y.tanh();
    }
    y.sin().sum().backward();
    EXPECT_EQ(calls, (std::vector<std::string>{"outer", "inner", "outer"}));
    EXPECT_TRUE(tensors_near(
        x.grad(),
        [] {
            auto x = waves({3}, 0).requires_grad_();
            x.exp().tanh().sin().sum().backward();
            return x.grad();
        }(),
        0));
}

TEST(SavedTensors, MoveAndComeBack)
{
    run_ranks(2, [](const auto& mesh) {
        const auto run = [&](bool offloaded) {
            auto x = from_local(waves({2 + mesh->coordinate(0), 3}, 0), mesh, {Shard(0)}).requires_grad_();
            auto w = waves({3, 3}, 1).requires_grad_();
            int moved = 0;
            std::optional<SavedTensorHooks> hooks;
            if (offloaded) hooks.emplace(offload_where([&](const at::Tensor&) { return ++moved > 0; }, false));
            at::matmul(at::matmul(x, w).tanh(), w).pow(2).sum().backward();
            EXPECT_EQ(moved > 3, offloaded);
            return std::vector<at::Tensor>{full_tensor(x.grad()), full_tensor(w.grad())};
        };
        const auto found = run(true), expected = run(false);
        for (int i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(found[i], expected[i]));
    });
}

TEST(SavedTensors, StayOnTheHost)
{
    const OffloadSavedTensors offload({.least_bytes = 0});
    auto x = waves({3}, 0).requires_grad_();
    x.exp().sum().backward();
    EXPECT_TRUE(tensors_near(x.grad(), x.detach().exp(), 0));
}

TEST(SavedTensors, LeaveTheGpu)
{
    if (!at::globalContext().hasCUDA()) GTEST_SKIP() << "needs a GPU";
    const auto run = [](bool offloaded) {
        auto x = waves({64, 64}, 0).to(at::kCUDA).requires_grad_();
        std::optional<OffloadSavedTensors> offload;
        if (offloaded) offload.emplace(OffloadOptions{.least_bytes = 0});
        x.exp().tanh().matmul(x).sum().backward();
        return x.grad().cpu();
    };
    EXPECT_TRUE(at::equal(run(true), run(false)));
}

}  // namespace
}  // namespace meshard
