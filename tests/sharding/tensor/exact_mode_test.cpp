// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_ops.h"
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/exact_mode.h"
#include "sharding/tensor/rule_table.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <mutex>
#include <random>

namespace meshard {
namespace {

struct ExactMode : testing::Test {
    ExactMode() { set_exact_mode(true); }
    ~ExactMode() override { set_exact_mode(false); }
};

/// Values of very different size, whose sums depend on their order.
at::Tensor wild(c10::IntArrayRef shape, at::ScalarType type, std::uint64_t seed = 1)
{
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal;
    auto values = at::empty(shape, at::kDouble);
    auto* v = values.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < values.numel(); ++i) v[i] = normal(engine) * std::exp(3 * normal(engine));
    return values.to(type);
}

Extents draw_extents(std::mt19937_64& random, std::int64_t n, std::int64_t ranks)
{
    Extents cuts{0, n}, extents;
    for (std::int64_t r = 1; r < ranks; ++r) cuts.push_back(static_cast<std::int64_t>(random() % (n + 1)));
    std::sort(cuts.begin(), cuts.end());
    for (std::int64_t r = 0; r < ranks; ++r) extents.push_back(cuts[r + 1] - cuts[r]);
    return extents;
}

at::Tensor cut(const at::Tensor& whole, const Extents& extents, std::int64_t dim,
               const std::shared_ptr<const DeviceMesh>& mesh)
{
    const AxisLayout layout{Shard(dim), std::make_shared<const Extents>(extents), 1};
    const auto rank = mesh->coordinate(0);
    return from_local(whole.narrow(dim, layout.offset(rank), extents[rank]).clone(), make_spec(mesh, {layout}));
}

using Results = std::vector<at::Tensor>;

/// What `body` returns on every rank, the same there, on several numbers of ranks, must be the same bits everywhere.
/// Returns it.
Results same_on_any_ranks(std::int64_t rows,
                          const std::function<Results(const std::shared_ptr<const DeviceMesh>&, const Extents&)>& body)
{
    std::mt19937_64 random(5);
    Results first;
    for (const int ranks : {1, 2, 3, 5, 8, 3, 2}) {
        const auto extents = draw_extents(random, rows, ranks);
        run_ranks(ranks, [&](const auto& mesh) {
            const auto found = body(mesh, extents);
            static std::mutex mutex;
            const std::lock_guard lock(mutex);
            if (first.empty()) {
                for (const auto& tensor : found) first.push_back(tensor.clone());
            }
            ASSERT_EQ(found.size(), first.size());
            for (std::size_t i = 0; i < found.size(); ++i) {
                EXPECT_TRUE(at::equal(found[i], first[i]))
                    << "result " << i << " on " << ranks << " ranks: " << tensors_near(found[i], first[i], 0).message();
            }
        });
    }
    return first;
}

TEST_F(ExactMode, SumsToTheSameBits)
{
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf}) {
        const auto x =
            (type == at::kHalf ? wild({1000, 7}, at::kDouble).clamp(-50, 50) : wild({1000, 7}, at::kDouble)).to(type);
        const auto found = same_on_any_ranks(1000, [&](const auto& mesh, const auto& extents) -> Results {
            const auto s = cut(x, extents, 0, mesh);
            return {full_tensor(s.sum()),
                    full_tensor(s.sum(0)),
                    full_tensor(s.mean()),
                    full_tensor(s.mean({0}, true)),
                    full_tensor(s.sum(at::IntArrayRef({0, 1}))),
                    full_tensor(s.sum(1))};
        });
        const auto exact = x.to(at::kDouble);
        const auto tolerance = type == at::kHalf ? 1e-3 : type == at::kFloat ? 1e-6 : 1e-14;
        EXPECT_TRUE(tensors_near(found[0].to(at::kDouble), exact.sum(), tolerance * 10));
        EXPECT_TRUE(tensors_near(found[1].to(at::kDouble), exact.sum(0), tolerance));
        EXPECT_TRUE(tensors_near(found[3].to(at::kDouble), exact.mean({0}, true), tolerance));
        EXPECT_TRUE(tensors_near(found[5].to(at::kDouble), exact.sum(1), tolerance));
    }
}

TEST_F(ExactMode, OrdinarySumsDoDepend)
{
    // Shows that the test above can fail.
    set_exact_mode(false);
    const auto x = wild({1000, 7}, at::kFloat);
    bool differs = false;
    at::Tensor first;
    std::mt19937_64 random(5);
    for (const int ranks : {1, 2, 3, 5}) {
        const auto extents = draw_extents(random, 1000, ranks);
        run_ranks(ranks, [&](const auto& mesh) {
            const auto sum = full_tensor(cut(x, extents, 0, mesh).sum(0));
            if (mesh->coordinate(0) != 0) return;
            if (!first.defined()) first = sum;
            differs |= !at::equal(sum, first);
        });
    }
    EXPECT_TRUE(differs);
}

TEST_F(ExactMode, MultipliesToTheSameBits)
{
    const auto a = wild({301, 6}, at::kFloat), b = wild({301, 5}, at::kFloat, 2), c = wild({6, 5}, at::kFloat, 3),
               bias = wild({5}, at::kFloat, 4);
    const auto found = same_on_any_ranks(301, [&](const auto& mesh, const auto& extents) -> Results {
        const auto x = cut(a, extents, 0, mesh), y = cut(b, extents, 0, mesh);
        const auto batched = [&](const at::Tensor& t) { return t.unsqueeze(0).expand({2, t.size(0), t.size(1)}); };
        return {full_tensor(at::mm(x.t(), y)),
                full_tensor(at::mm(x, c)),
                full_tensor(at::addmm(bias, x, c)),
                full_tensor(at::addmm(bias, x, c, 0.5, 2)),
                full_tensor(at::bmm(batched(x).transpose(1, 2), batched(y))),
                full_tensor(at::mm(x, x.t()))};
    });
    const auto x = a.to(at::kDouble), y = b.to(at::kDouble), z = c.to(at::kDouble);
    EXPECT_TRUE(tensors_near(found[0].to(at::kDouble), at::mm(x.t(), y), 1e-6));
    EXPECT_TRUE(tensors_near(found[1].to(at::kDouble), at::mm(x, z), 1e-6));
    EXPECT_TRUE(tensors_near(found[2].to(at::kDouble), at::addmm(bias.to(at::kDouble), x, z), 1e-6));
    EXPECT_TRUE(tensors_near(found[3].to(at::kDouble), at::addmm(bias.to(at::kDouble), x, z, 0.5, 2), 1e-6));
    EXPECT_TRUE(tensors_near(found[4][1].to(at::kDouble), at::mm(x.t(), y), 1e-6));
    EXPECT_TRUE(tensors_near(found[5].to(at::kDouble), at::mm(x, x.t()), 1e-6));
}

TEST_F(ExactMode, TrainsToTheSameBits)
{
    set_gather_policy(GatherPolicy::Silent);
    const auto x = wild({50, 16}, at::kFloat).clamp(-3, 3), target = wild({50, 4}, at::kFloat, 9).clamp(-3, 3);
    same_on_any_ranks(50, [&](const auto& mesh, const auto& extents) {
        set_gather_policy(GatherPolicy::Silent);
        torch::nn::Sequential net(torch::nn::Linear(16, 33), torch::nn::GELU(),
                                  torch::nn::LayerNorm(torch::nn::LayerNormOptions({33})), torch::nn::Linear(33, 4));
        {
            const at::NoGradGuard no_grad;
            int seed = 20;
            for (auto& parameter : net->parameters())
                parameter.copy_(wild(parameter.sizes(), at::kFloat, ++seed).clamp(-0.3, 0.3));
        }
        const auto replicated = replicate(*net, mesh);
        torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
        const auto input = cut(x, extents, 0, mesh), goal = cut(target, extents, 0, mesh);
        Results results;
        for (int step = 0; step < 4; ++step) {
            optimizer.zero_grad();
            const auto loss = at::mse_loss(net->forward(input), goal);
            loss.backward();
            optimizer.step();
            results.push_back(full_tensor(loss).detach());
            for (const auto& parameter : net->parameters()) results.push_back(parameter.grad().clone());
        }
        for (const auto& parameter : net->parameters()) results.push_back(parameter.detach());
        return results;
    });
}

TEST_F(ExactMode, MakesTheSameSliceTokens)
{
    const auto w = at::softmax(wild({2, 90, 2, 5}, at::kFloat), -1),
               f = wild({2, 90, 2, 4}, at::kFloat, 2).clamp(-9, 9);
    const auto run = [&](const at::Tensor& weights, const at::Tensor& features) {
        auto a = weights.detach().clone().requires_grad_(), b = features.detach().clone().requires_grad_();
        const auto tokens = slice_tokens(a, b, 1e-5);
        const auto rows = deslice_tokens(a, tokens * 2);
        (rows * rows).sum().backward();
        return Results{full_tensor(tokens).detach(), full_tensor(rows).detach(), full_tensor(a.grad()),
                       full_tensor(b.grad())};
    };
    const auto found = same_on_any_ranks(90, [&](const auto& mesh, const auto& extents) {
        return run(cut(w, extents, 1, mesh), cut(f, extents, 1, mesh));
    });
    const auto expected = run(w.to(at::kDouble), f.to(at::kDouble));
    for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(tensors_near(found[i].to(at::kDouble), expected[i], 1e-5)) << "result " << i;
}

TEST_F(ExactMode, KeepsTwoAxesApart)
{
    const auto a = wild({9, 8}, at::kFloat), b = wild({8, 5}, at::kFloat, 2);
    at::Tensor first;
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1, 1}, {2, 3}, {3, 2}, {1, 4}}) {
        run_ranks(shape, {"data", "domain"}, [&](const auto& mesh) {
            const auto x = redistribute(from_local(a.clone(), replicated_spec(mesh)), {Shard(1), Shard(0)});
            const auto y = at::mm(x, b);
            EXPECT_TRUE(spec_of(y)->axes[1].is_shard());
            const auto whole = at::cat({full_tensor(y).reshape({-1}), full_tensor(x.sum()).view({1})});
            if (mesh->all().rank() != 0) return;
            if (!first.defined()) first = whole;
            EXPECT_TRUE(at::equal(whole, first));
        });
    }
}

TEST_F(ExactMode, TellsOfNumbersThatAreNotFinite)
{
    run_ranks(2, [](const auto& mesh) {
        auto local = at::ones({3, 2});
        if (mesh->coordinate(0) == 1) local[1][0] = INFINITY;
        const auto x = from_local(local, mesh, {Shard(0)});
        const auto sum = full_tensor(x.sum(0));
        EXPECT_TRUE(sum[0].isnan().template item<bool>());
        EXPECT_EQ(sum[1].template item<float>(), 6);
        const auto product = full_tensor(at::mm(x.t(), x));
        EXPECT_TRUE(product[0][1].isnan().template item<bool>());
        EXPECT_EQ(product[1][1].template item<float>(), 6);
    });
    EXPECT_THROW(exact_product(at::ones({2, 2}, at::kDouble), at::ones({2, 2}, at::kDouble), 2, {}), InvalidInput);
}

TEST_F(ExactMode, SumsNothing)
{
    run_ranks(3, [](const auto& mesh) {
        const auto x = from_local(at::ones({0, 2}), mesh, {Shard(0)});
        EXPECT_TRUE(at::equal(full_tensor(x.sum(0)), at::zeros({2})));
        EXPECT_TRUE(at::equal(full_tensor(at::mm(x.t(), x)), at::zeros({2, 2})));
    });
}

}  // namespace
}  // namespace meshard
