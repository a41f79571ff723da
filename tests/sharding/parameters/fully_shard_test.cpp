// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/memory/recompute.h"
#include "sharding/parameters/fully_shard.h"
#include "sharding/parameters/gradient_norm.h"
#include "sharding/parameters/move_module.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"
#include "tests/support/test_device.h"

#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <map>
#include <stdexcept>
#include <thread>

namespace meshard {
namespace {

at::Tensor waving_values(c10::IntArrayRef shape, double start)
{
    return at::arange(c10::multiply_integers(shape), at::kDouble)
        .mul(0.37)
        .add(start)
        .sin_()
        .view(shape)
        .to(device_of_tests());
}

void fill(torch::nn::Module& module, double start)
{
    const at::NoGradGuard no_grad;
    for (auto& parameter : module.parameters())
        parameter.copy_(waving_values(parameter.sizes(), start += 0.7).mul(0.5));
}

/// Blocks with residuals, a bare parameter, one weight used in two places, a frozen bias.
struct NetImpl : torch::nn::Module {
    NetImpl()
    {
        first = register_module("first", torch::nn::Linear(3, 8));
        blocks = register_module("blocks", torch::nn::ModuleList());
        for (int i = 0; i < 3; ++i) {
            blocks->push_back(torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                                                    torch::nn::Linear(8, 16), torch::nn::GELU(),
                                                    torch::nn::Linear(16, 8)));
        }
        last = register_module("last", torch::nn::Linear(8, 2));
        position = register_parameter("position", at::zeros({8}));
        to(at::kDouble);
        move_module(*this, device_of_tests());
        fill(*this, 0);
        last->bias.set_requires_grad(false);
    }

    at::Tensor forward(const at::Tensor& x, bool checkpointed = false)
    {
        auto h = first->forward(x) + position;
        for (const auto& block : *blocks) {
            const auto run = [&](const at::Tensor& t) { return block->as<torch::nn::SequentialImpl>()->forward(t); };
            h = h + (checkpointed ? checkpoint(run, h) : run(h));
        }
        return last->forward(h * position.tanh());
    }

    torch::nn::Linear first{nullptr}, last{nullptr};
    torch::nn::ModuleList blocks;
    at::Tensor position;
};
TORCH_MODULE(Net);

at::Tensor inputs(int sample, int step)
{
    return waving_values({6, 3}, 0.3 * sample + 0.11 * step);
}

torch::optim::AdamOptions adam()
{
    return torch::optim::AdamOptions(0.01).weight_decay(0.1);
}

/// The bytes of whole parameters that stay. A worker thread of Gloo lets go of a gathered unit a moment after the call
/// that gathered it has returned, so they are asked for until none is left, for two seconds at most.
std::int64_t bytes_that_stay(const FullyShardedModule& sharded)
{
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (sharded.gathered_bytes() > 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return sharded.gathered_bytes();
}

/// Losses of serial training on `num_data` samples a step, and the parameters after it.
struct Training {
    std::vector<double> losses, norms;
    std::vector<std::pair<std::string, at::Tensor>> parameters;
};

Training serial(int num_data, double max_norm = 0)
{
    Net net;
    torch::optim::Adam optimizer(net->parameters(), adam());
    Training result;
    for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        at::Tensor loss = at::zeros({}, at::dtype(at::kDouble).device(device_of_tests()));
        for (int sample = 0; sample < num_data; ++sample)
            loss = loss + net->forward(inputs(sample, step)).pow(2).mean() / num_data;
        loss.backward();
        if (max_norm > 0) result.norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm));
        optimizer.step();
        result.losses.push_back(loss.item<double>());
    }
    for (const auto& item : net->named_parameters()) result.parameters.emplace_back(item.key(), item.value());
    return result;
}

void expect_trains_as(const Training& expected, const std::shared_ptr<const DeviceMesh>& mesh, bool checkpointed,
                      double max_norm = 0, const FullyShardOptions& options = {})
{
    const auto data = mesh->axis("data");
    Net net;
    if (mesh->all().rank() > 0) fill(*net, 9);  // the start comes from rank 0
    const auto sharded = fully_shard(*net, mesh, options);
    torch::optim::Adam optimizer(sharded.local_parameters(), adam());
    for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        auto x = inputs(static_cast<int>(mesh->coordinate(data)), step);
        if (mesh->has_axis("domain")) {
            const auto domain = mesh->sub_mesh("domain");
            const auto rank = domain->coordinate(0), size = domain->size(0);
            x = from_local(size == 1   ? x
                           : rank == 0 ? x.narrow(0, 0, 5)
                                       : x.narrow(0, 5, rank == 1 ? 1 : 0),
                           domain, {Shard(0)});
        }
        const auto loss = net->forward(x, checkpointed).pow(2).mean();
        loss.backward();
        EXPECT_EQ(bytes_that_stay(sharded), 0) << "after backward";
        EXPECT_EQ(sharded.group().size(), options.over_all_axes ? mesh->num_ranks() : mesh->size(data));
        if (max_norm > 0) {
            const auto norm = gradient_norm(sharded.local_parameters(), &sharded.group());
            EXPECT_NEAR(norm.item<double>(), expected.norms[step], 1e-12);
            scale_to_norm(sharded.local_parameters(), norm, max_norm);
        }
        optimizer.step();

        auto mean = full_tensor(loss).detach().view({1}).clone();
        mesh->group(data).all_reduce(mean);
        EXPECT_NEAR(mean.item<double>() / mesh->size(data), expected.losses[step], 1e-11) << "step " << step;
    }
    const auto parameters = sharded.full_parameters();
    ASSERT_EQ(parameters.size(), expected.parameters.size());
    for (const auto& [name, value] : expected.parameters) {
        const auto found =
            std::find_if(parameters.begin(), parameters.end(), [&](const auto& one) { return one.first == name; });
        ASSERT_NE(found, parameters.end()) << name;
        EXPECT_TRUE(tensors_near(found->second, value, 1e-9)) << name;
    }
}

TEST(FullyShard, TrainsAsTheSerialModel)
{
    for (const int ranks : {1, 2, 3, 4, 7}) {
        const auto expected = serial(ranks);
        for (const bool checkpointed : {false, true}) {
            run_ranks({ranks}, {"data"}, [&](const auto& mesh) { expect_trains_as(expected, mesh, checkpointed); });
        }
    }
}

TEST(FullyShard, CombinesWithADomain)
{
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 2}, {3, 2}, {2, 3}, {1, 2}}) {
        const auto expected = serial(static_cast<int>(shape[0]));
        run_ranks(shape, {"data", "domain"},
                  [&](const auto& mesh) { expect_trains_as(expected, mesh, shape[0] == 3); });
    }
}

TEST(FullyShard, CutsAmongTheRanksOfADomain)
{
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1, 1}, {1, 3}, {2, 2}, {3, 1}, {2, 3}}) {
        const auto expected = serial(static_cast<int>(shape[0]), 0.05);
        run_ranks(shape, {"data", "domain"}, [&](const auto& mesh) {
            expect_trains_as(expected, mesh, shape[0] == 2, 0.05, {.is_unit = {}, .over_all_axes = true});
        });
    }
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        Net net;
        std::int64_t bytes = 0, own = 0;
        for (const auto& parameter : net->parameters()) bytes += parameter.nbytes();
        const auto sharded = fully_shard(*net, mesh, {.is_unit = {}, .over_all_axes = true});
        for (const auto& [name, shard] : sharded.named_shards()) own += local_of(shard).nbytes();
        EXPECT_LE(own, bytes / 4 + 8 * 6);  // six units, each cut evenly
        const auto names = sharded.local_parameter_names();
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto whole = full_tensor(sharded.as_shard(i, sharded.local_parameters()[i]));
            EXPECT_TRUE(at::equal(whole, Net()->named_parameters()[names[i]].reshape({-1}))) << names[i];
        }
    });
}

TEST(FullyShard, ClipsByTheNormOfTheWhole)
{
    for (const double max_norm : {0.05, 1e6}) {
        const auto expected = serial(3, max_norm);
        run_ranks({3}, {"data"}, [&](const auto& mesh) { expect_trains_as(expected, mesh, false, max_norm); });
    }
}

TEST(FullyShard, TakesUnitsByAPredicate)
{
    const auto expected = serial(2);
    const FullyShardOptions options{
        .is_unit = [](const std::string&, const torch::nn::Module& submodule) { return submodule.children().empty(); }};
    run_ranks({2}, {"data"}, [&](const auto& mesh) { expect_trains_as(expected, mesh, false, 0, options); });
}

TEST(FullyShard, HoldsItsPartAndOneUnit)
{
    run_ranks({4}, {"data"}, [](const auto& mesh) {
        Net net;
        std::int64_t bytes = 0, largest = 0;
        for (const auto& parameter : net->parameters()) bytes += parameter.nbytes();
        for (const auto& parameter : net->blocks->children()[0]->parameters()) largest += parameter.nbytes();
        const auto sharded = fully_shard(*net, mesh);

        std::int64_t own = 0;
        for (const auto& [name, shard] : sharded.named_shards()) own += local_of(shard).nbytes();
        EXPECT_LE(own, bytes / 4 + 8 * 6);
        EXPECT_EQ(sharded.gathered_bytes(), 0);
        const auto loss = net->forward(inputs(0, 0)).pow(2).mean();
        EXPECT_LE(sharded.gathered_bytes(), largest);  // the graph holds none but the last unit
        loss.backward();
        EXPECT_LE(sharded.peak_gathered_bytes(), largest);
        EXPECT_GT(sharded.peak_gathered_bytes(), 0);
        EXPECT_EQ(sharded.gathered_bytes(), 0);

        // From the second step on, also the one that is gathered ahead.
        net->forward(inputs(0, 1)).pow(2).mean().backward();
        EXPECT_EQ(sharded.peak_gathered_bytes(), 2 * largest);
        EXPECT_EQ(sharded.gathered_bytes(), 0);
    });
}

TEST(FullyShard, GathersAUnitInOneMessage)
{
    run_ranks({2}, {"data"}, [](const auto& mesh) {
        Net net;
        const auto sharded = fully_shard(*net, mesh);
        mesh->counter().reset();
        const at::NoGradGuard no_grad;
        net->forward(inputs(0, 0));
        // first; position; three blocks; position again; last
        EXPECT_EQ(mesh->counter().num_calls(), 7);
    });
}

/// What happened on this thread: G a gather was started, W waited for, C a block's GELU, B its backward, R gradients
/// were sent, S their sums were waited for.
thread_local std::string events;

std::unique_ptr<at::ObserverContext> note_event(const at::RecordFunction& function)
{
    static const std::map<std::string, char> letters{
        {"all_gather over data", 'G'}, {"wait for all_gather over data", 'W'}, {"aten::gelu", 'C'},
        {"aten::gelu_backward", 'B'},  {"all_to_all over data", 'R'},          {"wait for all_to_all over data", 'S'}};
    const auto found = letters.find(function.name());
    if (found != letters.end() && !events.ends_with(found->second))
        events += found->second;  // an operator may call itself on the way down
    return nullptr;
}

template <class Action>
std::string events_of(const Action& action)
{
    events.clear();
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note_event).scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
    action();
    at::removeCallback(handle);
    return std::exchange(events, {});
}

TEST(FullyShard, SendsBehindTheComputation)
{
    run_ranks({2}, {"data"}, [](const auto& mesh) {
        Net net;
        const auto sharded = fully_shard(*net, mesh);
        at::Tensor loss;
        const auto forward = [&] { loss = net->forward(inputs(0, 0)).pow(2).mean(); };
        const auto backward = [&] { loss.backward(); };
        const auto evaluate = [&] {
            const at::NoGradGuard no_grad;
            net->forward(inputs(0, 0));
        };

        // first; position; three blocks; position again; last
        EXPECT_EQ(events_of(forward), "GWGWGWCGWCGWCGWGW");
        events_of(backward);
        for (int step = 0; step < 2; ++step) {
            EXPECT_EQ(events_of(forward), "GWGWGWGCWGCWGCWGW");
            EXPECT_EQ(events_of(backward), "GRWGBSRWGBSRWBSRSRSRS");
            EXPECT_EQ(events_of(evaluate), "GWGWGWGCWGCWGCWGW");
        }
    });
}

/// Training of which passes go other ways in between: what it gives in each step.
std::vector<at::Tensor> restless_training(const std::shared_ptr<const DeviceMesh>& mesh, bool checkpointed,
                                          const FullyShardOptions& options)
{
    const auto rank = static_cast<int>(mesh->coordinate(mesh->axis("data")));
    Net net;
    const auto sharded = fully_shard(*net, mesh, options);
    torch::optim::Adam optimizer(sharded.local_parameters(), adam());
    std::vector<at::Tensor> results;
    const auto block = [&](int i, const at::Tensor& h) {
        return net->blocks[i]->template as<torch::nn::SequentialImpl>()->forward(h);
    };
    const auto evaluate = [&] {
        const at::NoGradGuard no_grad;
        results.push_back(net->forward(inputs(rank, 77)));
    };
    const auto write_everywhere = [&](double change) {
        const at::NoGradGuard no_grad;
        for (auto part : sharded.local_parameters()) part.add_(change);
    };
    for (int step = 0; step < 10; ++step) {
        optimizer.zero_grad();
        const auto x = inputs(rank, step);
        if (step == 2 || step == 3) {  // evaluations before the step, with other values
            write_everywhere(0.01);
            evaluate();
            write_everywhere(-0.01);
            evaluate();
        }
        if (step == 4) {  // a forward that ends in its middle, and one that begins where it has ended, with new values
            const auto h = block(0, net->first->forward(x) + net->position);
            const at::NoGradGuard no_grad;
            auto names = sharded.local_parameter_names();
            for (std::size_t i = 0; i < names.size(); ++i) {
                auto part = sharded.local_parameters()[i];
                if (names[i].starts_with(sharded.group().rank() == 0 ? "blocks.1" : "first"))
                    part.add_(0.1);  // each rank writes to other parts
            }
            results.push_back(block(1, h));
        }
        if (step == 6) {  // a backward that fails in its middle
            auto h = block(0, net->first->forward(x) + net->position);
            h.register_hook([](const at::Tensor& gradient) -> at::Tensor {
                throw std::runtime_error("planted " + gradient.toString());
            });
            EXPECT_THROW(net->last->forward(block(2, block(1, h))).sum().backward(), std::runtime_error);
            optimizer.zero_grad();
        }
        if (step == 7) {
            for (const auto& [name, value] : sharded.full_parameters()) results.push_back(value);
        }
        at::Tensor y = net->forward(x, checkpointed);
        if (step == 5)
            y = net->last->forward(
                block(0, block(2, net->first->forward(x))));  // blocks left out, and in another order
        if (step == 8)
            y = y + net->forward(inputs(rank, 3), checkpointed) +
                net->last->forward(net->first->forward(x));  // units used again
        const auto loss = y.pow(2).mean();
        loss.backward(/*gradient=*/{}, /*retain_graph=*/step == 9);
        if (step == 9) loss.backward();
        EXPECT_EQ(bytes_that_stay(sharded), 0);
        results.push_back(loss.detach());
        for (const auto& part : sharded.local_parameters()) {
            if (part.grad().defined()) results.push_back(part.grad().clone());
        }
        optimizer.step();
    }
    return results;
}

TEST(FullyShard, GathersAheadWithTheSameBits)
{
    for (const auto& [shape, over_all_axes] : std::vector<std::pair<std::vector<std::int64_t>, bool>>{
             {{1, 1}, false}, {{2, 1}, false}, {{3, 1}, true}, {{1, 2}, true}, {{2, 2}, false}}) {
        for (const bool checkpointed : {false, true}) {
            run_ranks(shape, {"data", "domain"}, [&, over_all_axes = over_all_axes](const auto& mesh) {
                const auto results = [&](bool ahead) {
                    return restless_training(mesh, checkpointed,
                                             {.is_unit = {}, .overlaps = ahead, .over_all_axes = over_all_axes});
                };
                const auto expected = results(false), found = results(true);
                ASSERT_EQ(expected.size(), found.size());
                for (std::size_t i = 0; i < expected.size(); ++i)
                    EXPECT_TRUE(at::equal(expected[i], found[i])) << "result " << i;
            });
        }
    }
}

TEST(FullyShard, ReducesAUnitInOneMessage)
{
    run_ranks({2}, {"data"}, [](const auto& mesh) {
        Net net;
        const auto sharded = fully_shard(*net, mesh);
        const auto loss = net->forward(inputs(0, 0)).pow(2).mean();
        mesh->counter().reset();
        loss.backward();
        std::int64_t reductions = 0;
        for (const auto& call : mesh->counter().calls()) reductions += call.operation == "all_to_all";
        EXPECT_EQ(reductions, 6);  // five submodules and the module's own parameter
    });
}

TEST(FullyShard, LeavesUnusedParametersWithoutGradient)
{
    run_ranks({2}, {"data"}, [](const auto& mesh) {
        Net net;
        const auto sharded = fully_shard(*net, mesh);
        // Rank 1 does not use the bias, nobody uses the last layer.
        auto& first = net->first;
        auto y = at::matmul(inputs(0, 0), first->weight.t());
        if (mesh->coordinate(0) == 0) y = y + first->bias * 0;
        y.sum().backward();

        std::int64_t with = 0;
        std::size_t i = 0;
        for (const auto& [name, shard] : sharded.named_shards()) {
            if (name == "last.bias") continue;
            const auto& parameter = sharded.local_parameters()[i++];
            if (!parameter.grad().defined()) continue;
            EXPECT_TRUE(name.starts_with("first.")) << name;
            ++with;
        }
        EXPECT_GE(with, 1);
        double bias_count = 0;
        i = 0;
        for (const auto& [name, shard] : sharded.named_shards()) {
            if (name == "last.bias") continue;
            const auto& parameter = sharded.local_parameters()[i++];
            if (name == "first.bias" && parameter.grad().defined()) bias_count = static_cast<double>(parameter.numel());
        }
        auto total = at::full({1}, bias_count, at::kDouble);
        mesh->group(0).all_reduce(total);
        EXPECT_EQ(total.item<double>(), 8);  // known to whoever holds a part of it

        for (const auto& parameter : sharded.local_parameters()) parameter.mutable_grad() = at::Tensor();
        at::matmul(inputs(0, 0), first->weight.t()).sum().backward();
        for (i = 0; i < sharded.local_parameters().size(); ++i)
            EXPECT_EQ(sharded.local_parameters()[i].grad().defined(),
                      sharded.local_parameter_names()[i] == "first.weight")
                << "also on a rank that has no values of it";
    });
}

/// One rank of a domain computes with plain tensors what the other has no part in.
TEST(FullyShard, ComparesPlainGradientsOnAllRanksOfADomainOrNone)
{
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1, 2}, {2, 2}}) {
        for (const auto& [factor, over_all_axes] : {std::pair(0.0, false), {1.0, false}, {0.0, true}, {1.0, true}}) {
            run_ranks(shape, {"data", "domain"}, [&, factor = factor, over_all_axes = over_all_axes](const auto& mesh) {
                Net net;
                const auto sharded = fully_shard(*net, mesh, {.is_unit = {}, .over_all_axes = over_all_axes});
                const bool is_first = mesh->coordinate(mesh->axis("domain")) == 0;
                const auto domain = mesh->sub_mesh("domain");
                const auto x = from_local(inputs(0, 0).narrow(0, is_first ? 0 : 3, 3), domain, {Shard(0)});
                torch::autograd::variable_list losses{at::matmul(x, net->first->weight.t()).pow(2).mean()};
                if (is_first) losses.push_back((net->first->bias * factor).sum());
                if (factor == 0) {
                    torch::autograd::backward(losses, {});
                    EXPECT_TRUE(mesh->all().all_agree(true)) << "the next message meets that of another step";
                    return;
                }
                try {
                    torch::autograd::backward(losses, {});
                    ADD_FAILURE() << "the first rank's gradient passed for that of all";
                } catch (const InvalidInput& error) {
                    EXPECT_NE(
                        std::string(error.what())
                            .find("'first.bias' is a plain tensor and not the same on ranks 0 and 1 of axis 'domain'"),
                        std::string::npos)
                        << error.what();
                }
            });
        }
    }
}

TEST(FullyShard, AddsUpGradientsOfSeveralBackwards)
{
    run_ranks({3}, {"data"}, [](const auto& mesh) {
        Net net, other;
        const auto sharded = fully_shard(*net, mesh), at_once = fully_shard(*other, mesh);
        const auto rank = static_cast<int>(mesh->coordinate(0));
        for (const int step : {0, 1}) net->forward(inputs(rank, step)).pow(2).mean().backward();
        (other->forward(inputs(rank, 0)).pow(2).mean() + other->forward(inputs(rank, 1)).pow(2).mean()).backward();
        for (std::size_t i = 0; i < sharded.local_parameters().size(); ++i) {
            EXPECT_TRUE(
                tensors_near(sharded.local_parameters()[i].grad(), at_once.local_parameters()[i].grad(), 1e-12));
        }
    });
}

TEST(FullyShard, ServesOtherLayers)
{
    struct Model : torch::nn::Module {
        Model()
        {
            register_module("embedding", embedding);
            register_module("convolution", convolution);
            register_module("attention", attention);
            to(at::kDouble);
            move_module(*this, device_of_tests());
            fill(*this, 0);
        }
        at::Tensor forward(const at::Tensor& tokens)
        {
            auto h = convolution->forward(embedding->forward(tokens).transpose(1, 2)).transpose(1, 2).transpose(0, 1);
            return std::get<0>(attention->forward(h, h, h)).pow(2).mean();
        }
        torch::nn::Embedding embedding{7, 6};
        torch::nn::Conv1d convolution{torch::nn::Conv1dOptions(6, 6, 3).padding(1)};
        torch::nn::MultiheadAttention attention{6, 2};
    };
    const auto tokens = at::tensor({0, 3, 6, 1, 1, 5, 2, 2}).view({2, 4}).to(device_of_tests());
    Model plain;
    plain.forward(tokens).backward();

    run_ranks({3}, {"data"}, [&](const auto& mesh) {
        Model model;
        const auto sharded = fully_shard(model, mesh);
        model.forward(tokens).backward();
        std::size_t i = 0;
        for (const auto& [name, shard] : sharded.named_shards()) {
            const auto gradient = full_tensor(sharded.as_shard(i, sharded.local_parameters()[i].grad()));
            ++i;
            EXPECT_TRUE(tensors_near(gradient, plain.named_parameters()[name].grad().reshape({-1}), 1e-12)) << name;
        }
    });
}

TEST(FullyShard, LetsPairsBeViewedAsComplexNumbersBehindAnOddNumberOfValues)
{
    struct Model : torch::nn::Module {
        Model()
        {
            register_parameter("odd", odd);
            register_parameter("pairs", pairs);
            move_module(*this, device_of_tests());
            fill(*this, 0);
        }
        at::Tensor forward() const { return (at::view_as_complex(pairs).abs().sum() * odd).sum(); }
        at::Tensor odd = at::zeros({3}, at::kDouble), pairs = at::zeros({5, 2}, at::kDouble);
    };
    Model plain;
    plain.forward().backward();

    run_ranks({2}, {"data"}, [&](const auto& mesh) {
        Model model;
        const auto sharded = fully_shard(model, mesh);
        model.forward().backward();
        const auto names = sharded.local_parameter_names();
        for (std::size_t i = 0; i < names.size(); ++i) {
            const auto gradient = full_tensor(sharded.as_shard(i, sharded.local_parameters()[i].grad()));
            EXPECT_TRUE(tensors_near(gradient, plain.named_parameters()[names[i]].grad().reshape({-1}), 1e-12))
                << names[i];
        }
    });
}

/// Of the ranks' own gradients, added in double and rounded once.
TEST(FullyShard, RoundsTheSumOfNarrowGradientsOnce)
{
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        for (const int size : {2, 3, 4}) {
            const auto loss_of = [&](Net& net, int rank) {
                return net->forward(inputs(rank, 0).to(type)).pow(2).mean();
            };
            std::map<std::string, at::Tensor> sums;
            for (int r = 0; r < size; ++r) {
                Net serial;
                serial->to(type);
                loss_of(serial, r).backward();
                for (const auto& item : serial->named_parameters()) {
                    if (!item.value().requires_grad()) continue;
                    auto& sum = sums[item.key()];
                    sum = sum.defined() ? sum + item.value().grad() : item.value().grad().to(at::kDouble);
                }
            }
            run_ranks({size}, {"data"}, [&](const auto& mesh) {
                Net net;
                net->to(type);
                const auto sharded = fully_shard(*net, mesh);
                loss_of(net, static_cast<int>(mesh->coordinate(0))).backward();
                std::size_t i = 0;
                for (const auto& [name, shard] : sharded.named_shards()) {
                    if (name == "last.bias") continue;  // frozen
                    const auto gradient = full_tensor(sharded.as_shard(i, sharded.local_parameters()[i].grad()));
                    ++i;
                    EXPECT_TRUE(at::equal(gradient, sums.at(name).div(size).to(at::kFloat).to(type).reshape({-1})))
                        << at::toString(type) << ", " << size << " ranks, " << name;
                }
            });
        }
    }
}

TEST(FullyShard, RefusesWhatItCannotDo)
{
    run_ranks({2}, {"data"}, [](const auto& mesh) {
        Net net;
        const auto sharded = fully_shard(*net, mesh);
        EXPECT_THROW(fully_shard(*net, mesh), InvalidInput);
        const at::NoGradGuard no_grad;
        EXPECT_THROW(net->position.add_(1), InvalidInput);
        EXPECT_THROW(sharded.as_shard(0, at::zeros({1000})), InvalidInput);
        EXPECT_THROW(scale_to_norm(sharded.local_parameters(), at::ones({}, at::kDouble), 0), InvalidInput);
    });
    run_ranks(2, [](const auto& mesh) {
        Net net;
        EXPECT_THROW(fully_shard(*net, mesh), InvalidInput);  // no axis `data`
    });
}

}  // namespace
}  // namespace meshard
