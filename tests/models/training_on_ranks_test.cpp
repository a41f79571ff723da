// SPDX-License-Identifier: Apache-2.0
// Training over ranks: the serial run's losses, the same bits again, and no more memory than a rank's share.
#include "models/layers/metrics.h"
#include "models/transolver/transolver.h"
#include "sharding/parameters/replicate.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/live_bytes.h"
#include "tests/support/run_ranks.h"
#include "tests/support/small_models.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <optional>

namespace meshard {
namespace {

using test::small_transolver;

/// One sample and a model that starts from the same weights every time.
struct Training {
    at::Tensor fx, embedding, target;

    Training()
    {
        torch::manual_seed(5);
        fx = torch::randn({1, 60, 2});
        embedding = torch::rand({1, 60, 3});
        target = torch::sin(3 * embedding.sum(-1, true)) * torch::ones({1, 60, 4});
    }

    std::vector<double> losses(int num_steps, const std::shared_ptr<const DeviceMesh>& mesh,
                               const Extents& extents) const
    {
        const auto cut = [&](const at::Tensor& whole) {
            if (!mesh) return whole;
            const std::vector<AxisLayout> axes{{Shard(1), std::make_shared<Extents>(extents), 1}};
            const auto spec = make_spec(mesh, axes);
            return from_local(own_part(whole, *spec).clone(), spec);
        };
        Transolver model(small_transolver());
        std::optional<ReplicatedModule> replicated;
        if (mesh) replicated.emplace(replicate(*model, mesh));
        {
            const torch::NoGradGuard no_grad;  // ranks that share a process share its generator
            auto generator = at::detail::createCPUGenerator(6);
            for (auto& parameter : model->parameters()) parameter.normal_(0, 0.2, generator);
        }
        torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
        const auto x = cut(fx), e = cut(embedding), t = cut(target);
        std::vector<double> losses;
        for (int step = 0; step < num_steps; ++step) {
            optimizer.zero_grad();
            const auto loss = mean_squared_error(model->forward(x, e), t);
            loss.backward();
            optimizer.step();
            losses.push_back(loss.item<double>());
        }
        return losses;
    }
};

TEST(TrainingOnRanks, FollowsTheSerialRunForAHundredSteps)
{
    const Training training;
    const auto expected = training.losses(100, nullptr, {});
    ASSERT_LT(expected.back(), 0.5 * expected.front()) << "it must learn something";
    run_ranks(3, [&](const auto& mesh) {
        const auto found = training.losses(100, mesh, {41, 0, 19});
        for (std::size_t k = 0; k < expected.size(); ++k)
            EXPECT_NEAR(found[k], expected[k], 1e-4 * expected[k]) << "step " << k;
    });
}

TEST(TrainingOnRanks, GivesTheSameBitsAgain)
{
    const Training training;
    std::vector<double> first;
    for (int run = 0; run < 2; ++run) {
        run_ranks(3, [&](const auto& mesh) {
            const auto found = training.losses(10, mesh, {20, 30, 10});
            if (mesh->coordinate(0) == 0 && run == 0) first = found;
            if (run == 1) {
                EXPECT_EQ(found, first);
            }
        });
    }
}

TEST(TrainingOnRanks, NeedsTheMemoryOfItsShare)
{
    auto options = small_transolver();
    options.n_hidden = 48;
    options.mlp_ratio = 4;
    const auto peak_of = [&](const auto& forward_backward) {
        const LiveBytes bytes;
        forward_backward();
        return bytes.peak();
    };
    const auto step = [](Transolver& model, const at::Tensor& fx, const at::Tensor& embedding,
                         const at::Tensor& target) {
        mean_squared_error(model->forward(fx, embedding), target).backward();
    };
    run_ranks(4, [&](const auto& mesh) {
        constexpr std::int64_t kShare = 4000;
        const auto own = mesh->coordinate(0) == 3 ? kShare / 2 : kShare;
        const auto fx = torch::ones({1, own, 2}), embedding = torch::ones({1, own, 3}),
                   target = torch::ones({1, own, 4});
        Transolver plain(options), model(options);
        const auto alone = peak_of([&] { step(plain, fx, embedding, target); });
        const auto replicated = replicate(*model, mesh);
        const auto cut = [&](const at::Tensor& part) { return from_local(part, mesh, {Shard(1)}); };
        const auto x = cut(fx), e = cut(embedding), t = cut(target);

        const auto sharded = peak_of([&] { step(model, x, e, t); });

        std::int64_t parameters = 0;
        for (const auto& parameter : model->parameters()) parameters += static_cast<std::int64_t>(parameter.nbytes());
        EXPECT_GT(alone, 15 * own * 48 * 4) << "nothing was counted";
        EXPECT_LT(sharded, 1.05 * alone + 4 * parameters);
    });
}

}  // namespace
}  // namespace meshard
