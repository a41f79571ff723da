// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/cloud_interpolation.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace meshard {
namespace {

at::Tensor scattered_from(std::int64_t n, double phase)
{
    return at::arange(n * 3, at::kDouble).add(phase).mul(12.9898).sin().mul(43758.5453).frac().view({n, 3});
}

TEST(CloudInterpolation, WeighsByInverseDistance)
{
    const auto sources = at::tensor({0.0, 1.0, 4.0}, at::kDouble).view({3, 1}),
               targets = at::tensor({0.25, 4.0, 100.0}, at::kDouble).view({3, 1});
    const auto values = at::tensor({10.0, 20.0, 70.0}, at::kDouble);

    // Distances 1/4 and 3/4 of the first: 9 to 1 with power 2, 3 to 1 with power 1. The second lies on a source.
    EXPECT_TRUE(tensors_near(CloudInterpolation(sources, targets, {.num_neighbors = 2})(values).narrow(0, 0, 2),
                             at::tensor({11.0, 70.0}, at::kDouble), 1e-15));
    EXPECT_TRUE(
        tensors_near(CloudInterpolation(sources, targets, {.num_neighbors = 2, .power = 1})(values).narrow(0, 0, 2),
                     at::tensor({12.5, 70.0}, at::kDouble), 1e-15));
    EXPECT_TRUE(at::equal(CloudInterpolation(sources, targets)(values), at::tensor({10.0, 70.0, 70.0}, at::kDouble)));
    EXPECT_TRUE(tensors_near(
        CloudInterpolation(sources, targets, {.num_neighbors = 9, .power = 600})(at::ones({3, 2}, at::kDouble)),
        at::ones({3, 2}, at::kDouble), 1e-15));
}

TEST(CloudInterpolation, TakesTheMeanOfSourcesInOnePlace)
{
    const auto sources = at::zeros({3, 2}, at::kDouble).index_fill(0, at::tensor({2}, at::kLong), 1.0);

    const auto found = CloudInterpolation(sources, at::zeros({1, 2}, at::kDouble),
                                          {.num_neighbors = 3})(at::tensor({1.0, 4.0, 100.0}, at::kDouble));

    EXPECT_EQ(found.item<double>(), 2.5);
}

TEST(CloudInterpolation, BetweenTwoPartitionsIsThatOfTheWhole)
{
    const auto sources = scattered_from(80, 0), targets = scattered_from(50, 0.3), values = scattered_from(80, 7),
               weights = scattered_from(50, 9);
    for (const std::int64_t k : {1, 5}) {
        auto v0 = values.clone().requires_grad_();
        const auto whole = CloudInterpolation(sources, targets, {.num_neighbors = k})(v0);
        (whole * weights).sum().backward();
        for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
            const auto of_sources = point_partitions(sources, ranks), of_targets = point_partitions(targets, ranks);
            for (std::size_t i = 0; i < of_sources.size(); ++i) {
                const auto& [target_kind, target_owners] = of_targets[(i + 1) % of_targets.size()];
                SCOPED_TRACE(of_sources[i].first + " to " + target_kind + ", " + std::to_string(ranks) + " ranks");
                run_ranks(ranks, [&, &target_owners = target_owners](const auto& mesh) {
                    const CutPoints from(of_sources[i].second, mesh), to(target_owners, mesh);
                    auto v = from.of(values).requires_grad_();
                    const CloudInterpolation interpolation(from.cut(sources), to.cut(targets), {.num_neighbors = k});

                    const auto found = interpolation(from_local(v, from.spec));
                    (to_local(found) * to.of(weights)).sum().backward();

                    EXPECT_TRUE(tensors_near(local_of(found.detach()), to.of(whole.detach()), 1e-14));
                    EXPECT_TRUE(tensors_near(v.grad(), from.of(v0.grad()), 1e-14));
                });
            }
        }
    }
}

TEST(CloudInterpolation, HasDerivativesByThePointsOfBothClouds)
{
    const auto sources = scattered_from(40, 0), others = scattered_from(20, 0.3), values = scattered_from(40, 7),
               weights = scattered_from(22, 9), way = scattered_from(40, 5), way_of_others = scattered_from(20, 3);
    // Two targets lie on sources, and move with them.
    const auto sum = [&](const at::Tensor& from, const at::Tensor& to) {
        const CloudInterpolation interpolation(from, at::cat({to, from.narrow(0, 0, 2)}), {.num_neighbors = 4});
        return (interpolation(values) * weights).sum();
    };
    const auto s = sources.clone().requires_grad_(), t = others.clone().requires_grad_();

    sum(s, t).backward();

    constexpr double kStep = 1e-6;
    const auto moved = [&](double step) { return sum(sources + step * way, others + step * way_of_others); };
    const auto difference = ((moved(kStep) - moved(-kStep)) / (2 * kStep)).item<double>();
    const auto derivative = ((s.grad() * way).sum() + (t.grad() * way_of_others).sum()).item<double>();
    EXPECT_NEAR(derivative, difference, 1e-7 * std::abs(difference));
}

TEST(CloudInterpolation, RefusesWhatItCannotUse)
{
    const auto points = scattered_from(4, 0);
    EXPECT_TRUE(throws_with<InvalidInput>("power", [&] { CloudInterpolation(points, points, {.power = 0}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no points", [&] { CloudInterpolation(points.narrow(0, 0, 0), points); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("features of 3 rows", [&] { CloudInterpolation(points, points)(at::ones({3})); }));
}

}  // namespace
}  // namespace meshard
