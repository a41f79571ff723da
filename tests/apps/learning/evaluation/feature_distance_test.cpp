// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/checkpoints/kept_features.h"
#include "apps/learning/evaluation/feature_distance.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <fstream>
#include <vector>

namespace meshard {
namespace {

/// 14 cases of 20 features that differ in five directions.
at::Tensor cases_of_five_directions()
{
    torch::manual_seed(5);
    return torch::randn({14, 5}, torch::kDouble).matmul(torch::randn({5, 20}, torch::kDouble)) + 3;
}

/// Mahalanobis' distance of one row from the mean of others, with the ridge of FeatureDistance, by solving for it.
double solved_distance(const at::Tensor& others, const at::Tensor& row, const at::Tensor& deviations, double num_all)
{
    const auto n = others.size(0);
    const auto offsets = (others - others.mean(0)) / deviations, offset = (row - others.mean(0)) / deviations;
    const auto scatter = offsets.t().matmul(offsets) + num_all * 1e-3 * torch::eye(others.size(1), torch::kDouble);
    return std::sqrt(static_cast<double>(n) * offset.dot(torch::linalg_solve(scatter, offset)).item<double>());
}

TEST(FeatureDistance, IsMahalanobisOverTheMedianOfThatOfEachCaseFromTheOthers)
{
    const auto all = cases_of_five_directions();
    const auto deviations = (all - all.mean(0)).square().mean(0).sqrt();
    std::vector<double> left_out;
    for (std::int64_t i = 0; i < all.size(0); ++i) {
        const auto others = torch::cat({all.slice(0, 0, i), all.slice(0, i + 1)});
        left_out.push_back(solved_distance(others, all[i], deviations, static_cast<double>(all.size(0))));
    }
    std::ranges::sort(left_out);
    const FeatureDistance distance(all);
    for (const auto factor : {0.0, 0.5, 2.0, 40.0}) {
        const auto row =
            all.mean(0) + factor * (all[3] - all.mean(0)) + 0.01 * factor * torch::randn({20}, torch::kDouble);
        const auto expected = solved_distance(all, row, deviations, 14);
        const auto found = distance.of(row);
        EXPECT_NEAR(found.isolation, expected / (0.5 * (left_out[6] + left_out[7])), 1e-8 * expected + 1e-12) << factor;
        EXPECT_EQ(found.is_outside, expected > left_out.back()) << factor;
    }
    EXPECT_TRUE(distance.of(all.mean(0) + 40 * (all[3] - all.mean(0))).is_outside);
    EXPECT_FALSE(distance.of(all[3]).is_outside);
}

TEST(FeatureDistance, TellsADirectionInWhichNoTrainingCaseDiffers)
{
    const auto all = cases_of_five_directions();
    const auto inside = std::get<0>(torch::linalg_qr((all - all.mean(0)).t())).narrow(1, 0, 5);
    auto across = torch::randn({20}, torch::kDouble);
    across -= inside.matmul(inside.t().matmul(across));
    const auto step = across / across.norm() * (all[3] - all.mean(0)).norm();
    EXPECT_TRUE(FeatureDistance(all).of(all[3] + step).is_outside);
}

TEST(FeatureDistance, IsKeptBesideTheCheckpointItIsOf)
{
    const TemporaryFolder folder;
    const auto path = folder / "best.safetensors";
    const auto all = cases_of_five_directions();
    EXPECT_FALSE(kept_features(path, 3).has_value());
    keep_features(path, 3, FeatureDistance(all));
    EXPECT_FALSE(kept_features(path, 4).has_value()) << "it is of another step";
    const auto kept = kept_features(path, 3);
    ASSERT_TRUE(kept.has_value());
    EXPECT_EQ(kept->num_features(), 20);
    const auto row = all[2] * 1.5;
    EXPECT_NEAR(kept->of(row).isolation, FeatureDistance(all).of(row).isolation, 1e-2);

    std::ofstream(folder / "features.json") << "{\"step\": 3, \"features\": [[";
    EXPECT_TRUE(throws_with<IoError>("features.json is damaged", [&] { kept_features(path, 3); }));
    EXPECT_TRUE(throws_with<IoError>("Remove it", [&] { kept_features(path, 3); }));
}

}  // namespace
}  // namespace meshard
