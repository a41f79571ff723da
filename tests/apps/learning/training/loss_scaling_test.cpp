// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/weight_update.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace meshard {
namespace {

TEST(LossScaling, BringsBackGradientsThatFloat16WouldLose)
{
    const auto weights = torch::full({4}, 1.0, torch::kHalf).requires_grad_();
    const auto loss = [&] { return (weights * 1e-3).to(torch::kFloat).sum() * 1e-6; };
    const auto gradient = [&](const torch::Tensor& of) {
        return torch::autograd::grad({of}, {weights})[0].to(torch::kFloat);
    };
    LossScaling scaling;

    const auto lost = gradient(loss()), kept = gradient(scaling.scaled(loss()));
    const bool is_taken = scaling.unscale({torch::Tensor(), kept}, RankGroup());

    EXPECT_EQ(lost.abs().max().item<float>(), 0);
    EXPECT_TRUE(is_taken);
    EXPECT_TRUE(torch::allclose(kept, torch::full({4}, 1e-9), 1e-2, 0));
}

TEST(LossScaling, DoublesAfterGoodStepsAndHalvesAfterBadOnes)
{
    LossScaling scaling{.growth_interval = 3};
    std::vector<double> scales;
    for (const auto number :
         {1.0, 2.0, 3.0, 4.0, std::numeric_limits<double>::infinity(), std::nan(""), 1.0, 1.0, 1.0, 1.0}) {
        const auto gradient = torch::full({2, 2}, number) * scaling.scale;
        EXPECT_EQ(scaling.unscale({torch::ones({3}), gradient}, RankGroup()), std::isfinite(number));
        EXPECT_EQ(torch::equal(gradient, torch::full({2, 2}, number)), number != 0 && !std::isnan(number));
        scales.push_back(scaling.scale / 65536);
    }
    EXPECT_EQ(scales, (std::vector<double>{1, 1, 2, 2, 1, 0.5, 0.5, 0.5, 1, 1}));
    EXPECT_EQ(scaling.num_good_steps, 1);
}

TEST(LossScaling, TakesTheScaleFromADeviceWhereItIs)
{
    const auto weights = torch::ones({4}).requires_grad_();
    LossScaling scaling{.growth_interval = 1}, there = scaling;
    there.put_on(at::kCPU);
    for (int step = 0; step < 3; ++step) {
        const auto gradient = [&](const LossScaling& by) {
            return torch::autograd::grad({by.scaled((weights * 3).sum())}, {weights})[0];
        };
        EXPECT_TRUE(torch::equal(gradient(there), gradient(scaling)));
        for (auto* one : {&scaling, &there}) EXPECT_TRUE(one->unscale({gradient(*one)}, RankGroup()));
        EXPECT_EQ(there.on_device.item<float>(), scaling.scale);
    }
    EXPECT_EQ(scaling.scale, 65536 * 8);
}

TEST(LossScaling, LeavesOutAStepOnAllRanksIfItIsBadOnOne)
{
    run_ranks(3, [](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto& ranks = device_mesh->all();
        LossScaling scaling;
        const auto good = torch::ones({5});
        for (int bad = 0; bad < 3; ++bad) {
            const auto gradient =
                bad == ranks.rank() ? torch::full({5}, std::numeric_limits<float>::infinity()) : good.clone();
            EXPECT_FALSE(scaling.unscale({gradient}, ranks));
        }
        EXPECT_TRUE(scaling.unscale({ranks.rank() == 1 ? torch::Tensor() : good.clone()}, ranks));
        EXPECT_EQ(scaling.scale, 65536 / 8);
    });
}

TEST(LossScaling, GivesUpWhereNoScaleHelps)
{
    LossScaling scaling{.scale = 1.0 / 32768};
    const auto gradient = torch::full({1}, std::nan(""));
    EXPECT_FALSE(scaling.unscale({gradient}, RankGroup()));
    EXPECT_TRUE(throws_with<Error>("training.precision", [&] { scaling.unscale({gradient}, RankGroup()); }));
}

}  // namespace
}  // namespace meshard
