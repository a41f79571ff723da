// SPDX-License-Identifier: Apache-2.0
#include "sharding/replicate.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <gtest/gtest.h>

#include "partition/error.h"
#include "sharding/shard_tensor.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

namespace meshard {
namespace {

torch::nn::Sequential network(double start)
{
    torch::nn::Sequential net(torch::nn::Linear(3, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
        parameter.copy_(at::arange(parameter.numel(), parameter.options()).mul_(0.1).sub_(0.4).add_(start).sin_().view(parameter.sizes()));
    }
    net->to(at::kDouble);
    return net;
}

at::Tensor samples(std::int64_t n) { return at::arange(n * 3, at::kDouble).mul(0.37).sin().view({n, 3}); }

std::vector<at::Tensor> gradients(torch::nn::Sequential& net)
{
    std::vector<at::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.grad());
    return all;
}

void expect_gradients(torch::nn::Sequential& net, const std::vector<at::Tensor>& expected)
{
    const auto found = gradients(net);
    for (std::size_t k = 0; k < found.size(); ++k) {
        EXPECT_FALSE(is_sharded(found[k]));
        EXPECT_TRUE(tensors_near(found[k], expected[k], 1e-13)) << "parameter " << k;
    }
}

/// This rank's rows of n, cut 3:1:0:...
at::Tensor cut(const at::Tensor& rows, const DeviceMesh& mesh, std::int64_t axis)
{
    Extents extents(mesh.size(axis), 0);
    extents[0] = rows.size(0) * 3 / 4;
    extents[mesh.size(axis) > 1 ? 1 : 0] += rows.size(0) - rows.size(0) * 3 / 4;
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < mesh.coordinate(axis); ++r) offset += extents[r];
    return rows.narrow(0, offset, extents[mesh.coordinate(axis)]);
}

TEST(Replicate, StartsEveryRankFromTheFirstOnesParameters)
{
    run_ranks(3, [](const auto& mesh) {
        auto net = network(mesh->coordinate(0));
        const auto replicated = replicate(*net, mesh);
        auto expected = network(0);
        for (std::size_t k = 0; k < net->parameters().size(); ++k) {
            EXPECT_TRUE(at::equal(net->parameters()[k], expected->parameters()[k]));
        }
    });
}

TEST(Replicate, GivesTheSerialGradients)
{
    auto serial = network(0);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const int ranks : {1, 2, 3}) {
        for (const std::int64_t bucket_bytes : {1, 100, 1 << 20}) {
            run_ranks(ranks, [&](const auto& mesh) {
                auto net = network(0);
                const auto replicated = replicate(*net, mesh, {.bucket_bytes = bucket_bytes});
                const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});

                net->forward(x).pow(2).mean().backward();

                expect_gradients(net, expected);
            });
        }
    }
}

TEST(Replicate, AveragesOverDataAndSumsOverDomain)
{
    auto serial = network(0);
    const auto loss = [&](torch::nn::Sequential& net, const at::Tensor& x) { return net->forward(x).pow(2).mean(); };
    ((loss(serial, samples(8)) + loss(serial, samples(8).mul(2))) / 2).backward();
    const auto expected = gradients(serial);

    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        auto net = network(0);
        const auto replicated = replicate(*net, mesh);
        const auto domain = mesh->sub_mesh("domain");
        const auto own = samples(8).mul(mesh->coordinate(0) == 0 ? 1 : 2);

        loss(net, from_local(cut(own, *domain, 0), domain, {Shard(0)})).backward();

        expect_gradients(net, expected);
    });
}

TEST(Replicate, AddsUpGradientsOfSeveralBackwards)
{
    auto serial = network(0);
    for (int i = 1; i <= 2; ++i) serial->forward(samples(8).mul(i)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const bool sync_first : {false, true}) {
        run_ranks(2, [&](const auto& mesh) {
            auto net = network(0);
            auto replicated = replicate(*net, mesh);
            for (int i = 1; i <= 2; ++i) {
                replicated.set_sync(sync_first || i == 2);
                const auto x = from_local(cut(samples(8).mul(i), *mesh, 0), mesh, {Shard(0)});
                net->forward(x).pow(2).mean().backward();
            }
            expect_gradients(net, expected);
        });
    }
}

TEST(Replicate, SendsEveryGradientOnce)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = network(0);
        const auto replicated = replicate(*net, mesh);
        const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});
        const auto loss = net->forward(x).pow(2).mean();
        mesh->counter().reset();

        loss.backward();

        EXPECT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 8 * (3 * 5 + 5 + 5 * 2 + 2));
    });
}

TEST(Replicate, LeavesUnusedParametersWithoutGradient)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = network(0);
        net->push_back(torch::nn::Linear(2, 2));
        net->to(at::kDouble);
        const auto replicated = replicate(*net, mesh);
        auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});

        net->template at<torch::nn::LinearImpl>(0).forward(x).sum().backward();

        EXPECT_TRUE(net->parameters()[0].grad().defined());
        EXPECT_FALSE(net->parameters().back().grad().defined());
    });
}

TEST(Replicate, RefusesDifferentModules)
{
    run_ranks(2, [](const auto& mesh) {
        torch::nn::Linear net(3, 2 + mesh->coordinate(0));
        EXPECT_THROW(replicate(*net, mesh), InvalidInput);
    });
}

}  // namespace
}  // namespace meshard
