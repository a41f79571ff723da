// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/parameters/module_sync.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

namespace meshard {
namespace {

torch::nn::Sequential network(double start)
{
    torch::nn::Sequential net(torch::nn::Linear(3, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
        parameter.copy_(at::arange(parameter.numel()).mul(0.1).add(start).sin().view(parameter.sizes()));
    for (auto& buffer : net->buffers()) buffer.fill_(start);
    return net;
}

void expect_same(torch::nn::Sequential& found, torch::nn::Sequential& expected)
{
    for (std::size_t k = 0; k < found->parameters().size(); ++k)
        EXPECT_TRUE(at::equal(found->parameters()[k], expected->parameters()[k]));
    for (std::size_t k = 0; k < found->buffers().size(); ++k)
        EXPECT_TRUE(at::equal(found->buffers()[k], expected->buffers()[k]));
}

TEST(ModuleSync, StartsFromAnyRank)
{
    for (const int source : {0, 1, 3}) {
        run_ranks(4, [&](const auto& mesh) {
            auto net = network(mesh->coordinate(0)), expected = network(source);
            broadcast_module(*net, *mesh, source);
            expect_same(net, expected);

            auto other = network(mesh->coordinate(0));
            const auto replicated = replicate(*other, mesh, {.source_rank = source});
            expect_same(other, expected);
        });
    }
}

TEST(ModuleSync, StaysWithinItsSubMesh)
{
    run_ranks({2, 3}, {"data", "domain"}, [](const auto& mesh) {
        const auto data = mesh->coordinate(0), rank = mesh->all().rank();
        auto net = network(rank), expected = network(data * 3 + 2);
        mesh->counter().reset();
        broadcast_module(*net, *mesh->sub_mesh("domain"), 2);
        expect_same(net, expected);
        for (const auto& call : mesh->counter().calls()) EXPECT_EQ(call.axis, "domain");
        EXPECT_NO_THROW(verify_module(*net, *mesh->sub_mesh("domain"), 1));
        EXPECT_THROW(verify_module(*net, *mesh), InvalidInput);  // the two domains differ

        mesh->all().barrier();
        // Only one of the two domains does something: the other is not waited for.
        if (data == 1) broadcast_module(*net, *mesh->sub_mesh("domain"), 0);
    });
}

TEST(ModuleSync, FindsOneBitAndNamesTensorAndRank)
{
    for (const auto* name : {"2.weight", "0.bias", "1.running_var", "1.num_batches_tracked"}) {
        run_ranks(3, [&](const auto& mesh) {
            auto net = network(1);
            EXPECT_NO_THROW(verify_module(*net, *mesh));
            if (mesh->coordinate(0) == 2) {
                auto tensor =
                    net->named_parameters().contains(name) ? net->named_parameters()[name] : net->named_buffers()[name];
                static_cast<char*>(tensor.data_ptr())[tensor.nbytes() - tensor.element_size()] ^= 1;
            }
            EXPECT_TRUE(throws_with<InvalidInput>(std::string("'") + name + "' on rank 2 differs from that of rank 0",
                                                  [&] { verify_module(*net, *mesh); }));
            EXPECT_TRUE(throws_with<InvalidInput>("on rank 0, 1 differs from that of rank 2",
                                                  [&] { verify_module(*net, *mesh, 2); }));
            const auto before = net->parameters()[0].clone();
            EXPECT_THROW(replicate(*net, mesh, {.verify_at_start = true}), InvalidInput);
            EXPECT_TRUE(at::equal(net->parameters()[0], before));
        });
    }
}

TEST(ModuleSync, TellsNegativeZeroFromZero)
{
    run_ranks(2, [](const auto& mesh) {
        torch::nn::Linear net(1, 1);
        const at::NoGradGuard no_grad;
        net->weight.fill_(mesh->coordinate(0) == 0 ? 0.0 : -0.0);
        net->bias.zero_();
        EXPECT_THROW(verify_module(*net, *mesh), InvalidInput);
    });
}

TEST(ModuleSync, RefusesOnEveryRank)
{
    run_ranks(3, [](const auto& mesh) {
        auto net = network(0);
        EXPECT_THROW(broadcast_module(*net, *mesh, 3), InvalidInput);
        EXPECT_THROW(broadcast_module(*net, *mesh, -1), InvalidInput);
        EXPECT_THROW(broadcast_module(*net, *mesh, mesh->coordinate(0) == 0 ? 0 : 1), InvalidInput);
        if (mesh->coordinate(0) == 1) net->push_back(torch::nn::Linear(1, 1));
        EXPECT_THROW(verify_module(*net, *mesh), InvalidInput);
    });
}

TEST(Replicate, AddsUpOwnSharesWhileNotSynced)
{
    const auto x = at::arange(24).mul(0.1).sin().view({8, 3}).to(at::kDouble);
    torch::nn::Linear serial(3, 2);
    serial->to(at::kDouble);
    for (int i = 1; i <= 3; ++i) serial->forward(x * i).pow(2).mean().backward();

    run_ranks(2, [&](const auto& mesh) {
        torch::nn::Linear net(3, 2);
        net->to(at::kDouble);
        {
            const at::NoGradGuard no_grad;
            net->weight.copy_(serial->weight);
            net->bias.copy_(serial->bias);
        }
        auto replicated = replicate(*net, mesh);
        const auto own = x.narrow(0, mesh->coordinate(0) * 3, mesh->coordinate(0) == 0 ? 3 : 5);
        const auto backward = [&](int i) {
            net->forward(from_local(own * i, mesh, {Shard(0)})).pow(2).mean().backward();
        };
        mesh->counter().reset();
        {
            const auto none = replicated.no_sync();
            for (int i = 1; i <= 2; ++i) backward(i);
        }
        for (const auto& call : mesh->counter().calls()) EXPECT_NE(call.bytes, 8 * 8);
        backward(3);
        EXPECT_TRUE(tensors_near(net->weight.grad(), serial->weight.grad(), 1e-13));
        EXPECT_TRUE(tensors_near(net->bias.grad(), serial->bias.grad(), 1e-13));
    });
}

TEST(Replicate, KeepsAGradientThatALaterBackwardDoesNotTouch)
{
    run_ranks({2, 2}, {"data", "domain"}, [](const auto& mesh) {
        torch::nn::Linear used(2, 2), later(2, 2);
        torch::nn::Sequential net(used, later);
        net->to(at::kDouble);
        const auto replicated = replicate(*net, mesh);
        const auto domain = mesh->sub_mesh("domain");
        const auto x = from_local(at::ones({domain->coordinate(0) + 1, 2}, at::kDouble), domain, {Shard(0)});
        used->forward(x).sum().backward();
        EXPECT_TRUE(tensors_near(used->bias.grad(), at::full({2}, 3.0, at::kDouble), 0));

        later->forward(x).sum().backward();

        EXPECT_TRUE(tensors_near(used->bias.grad(), at::full({2}, 3.0, at::kDouble), 0));
        EXPECT_TRUE(tensors_near(later->bias.grad(), at::full({2}, 3.0, at::kDouble), 0));
    });
}

TEST(Replicate, TellsRanksOfAGradientThatOthersHave)
{
    run_ranks(3, [](const auto& mesh) {
        torch::nn::Linear used(2, 2), other(2, 2), unused(2, 2);
        torch::nn::Sequential net(used, other, unused);
        const auto replicated = replicate(*net, mesh);
        auto loss = used->forward(at::ones({1, 2})).sum();
        if (mesh->coordinate(0) == 1) loss = loss + (other->forward(at::ones({1, 2})) * -0.0).sum();  // zero, but there

        loss.backward();

        EXPECT_TRUE(other->weight.grad().defined());
        EXPECT_TRUE(used->weight.grad().defined());
        EXPECT_FALSE(unused->weight.grad().defined());
    });
}

TEST(Replicate, SumsALossThatSpansData)
{
    const auto x = at::arange(18).mul(0.1).sin().view({6, 3}).to(at::kDouble);
    torch::nn::Linear serial(3, 2);
    serial->to(at::kDouble);
    serial->forward(x).pow(2).mean().backward();
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        torch::nn::Linear net(3, 2);
        net->to(at::kDouble);
        {
            const at::NoGradGuard no_grad;
            net->weight.copy_(serial->weight);
            net->bias.copy_(serial->bias);
        }
        const auto replicated = replicate(*net, mesh);
        const auto rows = mesh->coordinate(0) == 0 ? x.narrow(0, 0, 4) : x.narrow(0, 4, 2);
        net->forward(from_local(rows, mesh, {Shard(0), Replicate()})).pow(2).mean().backward();
        EXPECT_TRUE(tensors_near(net->weight.grad(), serial->weight.grad(), 1e-13));
    });
}

}  // namespace
}  // namespace meshard
