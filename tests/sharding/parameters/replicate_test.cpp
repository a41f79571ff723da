// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace meshard {
namespace {

torch::nn::Sequential small_network(double start)
{
    torch::nn::Sequential net(torch::nn::Linear(3, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
        parameter.copy_(at::arange(parameter.numel(), parameter.options())
                            .mul_(0.1)
                            .sub_(0.4)
                            .add_(start)
                            .sin_()
                            .view(parameter.sizes()));
    }
    net->to(at::kDouble);
    return net;
}

at::Tensor samples(std::int64_t n)
{
    return at::arange(n * 3, at::kDouble).mul(0.37).sin().view({n, 3});
}

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
        auto net = small_network(mesh->coordinate(0));
        const auto replicated = replicate(*net, mesh);
        auto expected = small_network(0);
        for (std::size_t k = 0; k < net->parameters().size(); ++k) {
            EXPECT_TRUE(at::equal(net->parameters()[k], expected->parameters()[k]));
        }
    });
}

TEST(Replicate, GivesTheSerialGradients)
{
    auto serial = small_network(0);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const int ranks : {1, 2, 3}) {
        for (const std::int64_t bucket_bytes : {1, 100, 1 << 20}) {
            run_ranks(ranks, [&](const auto& mesh) {
                auto net = small_network(0);
                const auto replicated = replicate(*net, mesh, {.bucket_bytes = bucket_bytes});
                const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});

                net->forward(x).pow(2).mean().backward();

                expect_gradients(net, expected);
            });
        }
    }
}

// Such a node belongs to the stream on which it was made: kept from one graph to the next, it would tie a step that a
// CUDA graph records to another stream.
TEST(Replicate, LeavesEachGraphANodeOfItsOwn)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        for (int step = 0; step < 2; ++step) {
            for (const auto& parameter : net->parameters())
                EXPECT_FALSE(torch::autograd::impl::try_get_grad_accumulator(parameter));
            net->forward(from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)})).pow(2).mean().backward();
        }
    });
}

TEST(Replicate, ShowsHooksTheGradientOfTheWhole)
{
    const auto clamp_gradients = [](torch::nn::Sequential& net) {
        for (auto& parameter : net->parameters())
            parameter.register_hook([](const at::Tensor& gradient) { return gradient.clamp(-0.01, 0.01); });
    };
    auto serial = small_network(0);
    clamp_gradients(serial);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const bool before : {false, true}) {
        run_ranks(3, [&](const auto& mesh) {
            auto net = small_network(0);
            if (before) clamp_gradients(net);
            const auto replicated = replicate(*net, mesh);
            if (!before) clamp_gradients(net);

            net->forward(from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)})).pow(2).mean().backward();

            expect_gradients(net, expected);
            EXPECT_THROW(replicate(*net, mesh), InvalidInput);
        });
    }
}

TEST(Replicate, AveragesOverDataAndSumsOverDomain)
{
    auto serial = small_network(0);
    const auto loss = [&](torch::nn::Sequential& net, const at::Tensor& x) { return net->forward(x).pow(2).mean(); };
    ((loss(serial, samples(8)) + loss(serial, samples(8).mul(2))) / 2).backward();
    const auto expected = gradients(serial);

    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto domain = mesh->sub_mesh("domain");
        const auto own = samples(8).mul(mesh->coordinate(0) == 0 ? 1 : 2);

        loss(net, from_local(cut(own, *domain, 0), domain, {Shard(0)})).backward();

        expect_gradients(net, expected);
    });
}

/// The loss of all rows, whichever ranks have them: those of an axis of the parameters' mesh, or of another mesh.
TEST(Replicate, GivesTheSerialGradientsOfRowsOnOtherMeshes)
{
    auto serial = small_network(0);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);
    run_ranks_of_factory(4, [&](GroupFactory& ranks) {
        const auto grid = DeviceMesh::create(ranks, {2, 2}, {"data", "domain"}),
                   line = DeviceMesh::create(ranks, {4}, {"domain"}), rows = DeviceMesh::create(ranks, {4}, {"rows"}),
                   blocks = DeviceMesh::create(ranks, {2, 2}, {"rows", "domain"}),
                   turned = DeviceMesh::create(ranks, {2, 2}, {"domain", "rows"});
        for (const auto& of_parameters : {grid, line, grid->sub_mesh("domain"), blocks}) {
            for (const auto& of_rows : {grid->sub_mesh("data"), grid->sub_mesh("domain"), line, rows,
                                        turned->sub_mesh("domain"), turned->sub_mesh("rows")}) {
                auto net = small_network(0);
                const auto replicated = replicate(*net, of_parameters);
                net->forward(from_local(cut(samples(8), *of_rows, 0), of_rows, {Shard(0)})).pow(2).mean().backward();
                expect_gradients(net, expected);
            }
        }
        auto net = small_network(0);
        const auto on_line = replicate(*net, line);
        const auto cases = from_local(cut(samples(8), *grid, 1), grid, {Replicate(), Shard(0)});
        EXPECT_TRUE(
            throws_with<InvalidInput>("cases along an axis 'data'", [&] { net->forward(cases).sum().backward(); }));

        // Plain rows that return on a mesh whose axis of this name has other ranks, and on the parameters' own.
        const auto backward_of_rows = [&](const auto& of_parameters, const auto& of_rows) {
            auto other = small_network(0);
            const auto replicated = replicate(*other, of_parameters);
            const auto local = other->forward(cut(samples(8), *of_rows, 0));
            from_local(local, of_rows, {Shard(0)}).pow(2).mean().backward();
            expect_gradients(other, expected);
        };
        backward_of_rows(line, line);
        backward_of_rows(grid, grid->sub_mesh("data"));
        EXPECT_TRUE(
            throws_with<InvalidInput>("of the 4 ranks along the axis 'domain'", [&] { backward_of_rows(grid, line); }));
        EXPECT_TRUE(throws_with<InvalidInput>("does not have with these ranks",
                                              [&] { backward_of_rows(blocks, turned->sub_mesh("domain")); }));
    });
}

TEST(Replicate, AddsUpGradientsOfSeveralBackwards)
{
    auto serial = small_network(0);
    for (int i = 1; i <= 2; ++i) serial->forward(samples(8).mul(i)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const bool sync_first : {false, true}) {
        run_ranks(2, [&](const auto& mesh) {
            auto net = small_network(0);
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
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});
        const auto loss = net->forward(x).pow(2).mean();
        mesh->counter().reset();

        loss.backward();

        EXPECT_EQ(mesh->counter().num_calls(), 1);
        EXPECT_EQ(mesh->counter().total_bytes(), 8 * (3 * 5 + 5 + 5 * 2 + 2 + 1));  // and whether some are plain
    });
}

/// The last layer's gradients are on their way when backward comes to the layer before.
TEST(Replicate, SendsGradientsWhileBackwardStillRuns)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh, {.bucket_bytes = 1});
        const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});
        const auto hidden =
            net[1]->template as<torch::nn::Tanh>()->forward(net[0]->template as<torch::nn::Linear>()->forward(x));
        std::int64_t num_sent = -1;
        hidden.register_hook([&](const at::Tensor&) { num_sent = mesh->counter().num_calls(); });
        const auto loss = net[2]->template as<torch::nn::Linear>()->forward(hidden).pow(2).mean();
        mesh->counter().reset();

        loss.backward();

        EXPECT_EQ(num_sent, 2);  // of the last layer's weight and bias
        EXPECT_EQ(mesh->counter().num_calls(), 4);
    });
}

TEST(Replicate, LeavesUnusedParametersWithoutGradient)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = small_network(0);
        net->push_back(torch::nn::Linear(2, 2));
        net->to(at::kDouble);
        const auto replicated = replicate(*net, mesh);
        auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});

        net->template at<torch::nn::LinearImpl>(0).forward(x).sum().backward();

        EXPECT_TRUE(net->parameters()[0].grad().defined());
        EXPECT_FALSE(net->parameters().back().grad().defined());
    });
}

/// What is made of this rank's rows by plain operators, as part of the whole again.
at::Tensor on_own_rows(torch::nn::Sequential& net, const at::Tensor& x)
{
    const auto made = net->forward(to_local(x));
    auto axes = spec_of(x)->axes;
    return from_local(made, make_spec(spec_of(x)->device_mesh, axes));
}

TEST(Replicate, SumsTheSharesOfPlainRowsThatGoOnThroughFromLocal)
{
    auto serial = small_network(0);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);

    for (const int ranks : {1, 2, 3}) {
        run_ranks(ranks, [&](const auto& mesh) {
            auto net = small_network(0);
            const auto replicated = replicate(*net, mesh);
            auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});

            on_own_rows(net, x).pow(2).mean().backward();

            expect_gradients(net, expected);
        });
    }
    // The same rows on every rank: each counts.
    run_ranks(2, [&](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        on_own_rows(net, from_local(samples(8), mesh, {Shard(0)})).pow(2).mean().backward();
        expect_gradients(net, expected);
    });
}

TEST(Replicate, AveragesSharesOverData)
{
    auto serial = small_network(0);
    ((serial->forward(samples(8)).pow(2).mean() + serial->forward(samples(8).mul(2)).pow(2).mean()) / 2).backward();
    const auto expected = gradients(serial);
    run_ranks({2, 2}, {"data", "domain"}, [&](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto domain = mesh->sub_mesh("domain");
        const auto own = samples(8).mul(mesh->coordinate(0) == 0 ? 1 : 2);

        on_own_rows(net, from_local(cut(own, *domain, 0), domain, {Shard(0)})).pow(2).mean().backward();

        expect_gradients(net, expected);
    });
}

TEST(Replicate, SumsSharesOfBlocksOfRanks)
{
    auto serial = small_network(0);
    serial->forward(samples(8)).pow(2).mean().backward();
    const auto expected = gradients(serial);
    run_ranks_of_factory(4, [&](GroupFactory& ranks) {
        const auto mesh = DeviceMesh::create(ranks, {1, 4}, {"data", "domain"});
        const auto blocks = mesh->folded(ranks, "domain", {2, 2});
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto block =
            samples(8).view({2, 4, -1}).narrow(0, blocks->coordinate(0), 1).narrow(1, 2 * blocks->coordinate(1), 2);

        from_local(net->forward(block), blocks, {Shard(0), Shard(1)}).pow(2).mean().backward();
        expect_gradients(net, expected);

        const auto half = from_local(net->forward(block), blocks, {Shard(0), Replicate()});
        EXPECT_TRUE(throws_with<InvalidInput>("along the axis 'domain.0', which", [&] { half.sum().backward(); }));
    });
}

TEST(Replicate, CountsWhatAllRanksComputeAlikeOnce)
{
    const auto penalty = [](torch::nn::Sequential& net) {
        auto sum = at::zeros({}, at::kDouble);
        for (const auto& parameter : net->parameters()) sum = sum + parameter.pow(2).sum();
        return sum;
    };
    auto serial = small_network(0);
    (serial->forward(samples(8)).pow(2).mean() + penalty(serial)).backward();
    const auto expected = gradients(serial);
    for (const bool plain_root : {false, true}) {
        run_ranks(3, [&](const auto& mesh) {
            auto net = small_network(0);
            const auto replicated = replicate(*net, mesh);
            const auto loss = net->forward(from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)})).pow(2).mean();

            ((plain_root ? full_tensor(loss) : loss) + penalty(net)).backward();

            expect_gradients(net, expected);
        });
    }
}

/// Of the ranks' own gradients, added in double and rounded once.
TEST(Replicate, RoundsTheSumOfNarrowGradientsOnce)
{
    for (const auto type : {at::kBFloat16, at::kHalf}) {
        for (const int size : {2, 3, 4}) {
            std::vector<at::Tensor> sums;
            for (int r = 0; r < size; ++r) {
                auto serial = small_network(0);
                serial->to(type);
                serial->forward(samples(8).mul(1 + r).to(type)).pow(2).mean().backward();
                const auto own = gradients(serial);
                for (std::size_t k = 0; k < own.size(); ++k) {
                    if (r == 0)
                        sums.push_back(own[k].to(at::kDouble));
                    else
                        sums[k].add_(own[k]);
                }
            }
            run_ranks({size}, {"data"}, [&](const auto& mesh) {
                auto net = small_network(0);
                net->to(type);
                const auto replicated = replicate(*net, mesh);
                net->forward(samples(8).mul(1 + mesh->coordinate(0)).to(type)).pow(2).mean().backward();
                const auto found = gradients(net);
                for (std::size_t k = 0; k < found.size(); ++k) {
                    EXPECT_TRUE(at::equal(found[k], sums[k].div(size).to(at::kFloat).to(type)))
                        << at::toString(type) << ", " << size << " ranks, parameter " << k;
                }
            });
        }
    }
}

TEST(Replicate, GivesNarrowGradientsOfCutRows)
{
    auto serial = small_network(0);  // in double, from the same rounded weights and rows
    serial->to(at::kBFloat16);
    serial->to(at::kDouble);
    const auto rows = samples(64).to(at::kBFloat16);
    serial->forward(rows.to(at::kDouble)).pow(2).mean().backward();
    const auto expected = gradients(serial);
    for (const int size : {1, 2, 3}) {
        run_ranks(size, [&](const auto& mesh) {
            auto net = small_network(0);
            net->to(at::kBFloat16);
            const auto replicated = replicate(*net, mesh);
            net->forward(from_local(cut(rows, *mesh, 0), mesh, {Shard(0)})).pow(2).mean().backward();
            const auto found = gradients(net);
            for (std::size_t k = 0; k < found.size(); ++k)
                EXPECT_TRUE(tensors_near(found[k].to(at::kDouble), expected[k], 2e-2)) << "parameter " << k;
        });
    }
}

TEST(Replicate, RefusesPlainRowsWhoseGradientsWouldCountOnce)
{
    run_ranks(2, [](const auto& mesh) {
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});
        try {
            net->forward(to_local(x)).pow(2).sum().backward();  // every rank its own loss
            ADD_FAILURE() << "gradients of one rank's rows passed for those of all";
        } catch (const InvalidInput& error) {
            EXPECT_NE(std::string(error.what())
                          .find("'0.weight' is a plain tensor and not the same on ranks 0 and 1 of axis 'domain'"),
                      std::string::npos)
                << error.what();
        }
    });
    run_ranks(2, [](const auto& mesh) {  // one way and the other
        auto net = small_network(0);
        const auto replicated = replicate(*net, mesh);
        const auto x = from_local(cut(samples(8), *mesh, 0), mesh, {Shard(0)});
        try {
            (on_own_rows(net, x) * net->forward(x)).sum().backward();
            ADD_FAILURE() << "shares and whole gradients were added up";
        } catch (const InvalidInput& error) {
            EXPECT_NE(std::string(error.what()).find("is used with rows of this rank alone"), std::string::npos)
                << error.what();
        }
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
