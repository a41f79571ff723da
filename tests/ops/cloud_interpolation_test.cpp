// SPDX-License-Identifier: Apache-2.0
#include "ops/cloud_interpolation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "partition/error.h"
#include "sharding/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/expect_tensors.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

namespace meshard {
namespace {

at::Tensor scattered(std::int64_t n, double phase)
{
    return at::arange(n * 3, at::kDouble).add(phase).mul(12.9898).sin().mul(43758.5453).frac().view({n, 3});
}

TEST(CloudInterpolation, WeighsByInverseDistance)
{
    const auto sources = at::tensor({0.0, 1.0, 4.0}, at::kDouble).view({3, 1}), targets = at::tensor({0.25, 4.0, 100.0}, at::kDouble).view({3, 1});
    const auto values = at::tensor({10.0, 20.0, 70.0}, at::kDouble);

    // Distances 1/4 and 3/4 of the first: 9 to 1 with power 2, 3 to 1 with power 1. The second lies on a source.
    EXPECT_TRUE(tensors_near(CloudInterpolation(sources, targets, {.num_neighbors = 2})(values).narrow(0, 0, 2), at::tensor({11.0, 70.0}, at::kDouble), 1e-15));
    EXPECT_TRUE(tensors_near(CloudInterpolation(sources, targets, {.num_neighbors = 2, .power = 1})(values).narrow(0, 0, 2), at::tensor({12.5, 70.0}, at::kDouble), 1e-15));
    EXPECT_TRUE(at::equal(CloudInterpolation(sources, targets)(values), at::tensor({10.0, 70.0, 70.0}, at::kDouble)));
    EXPECT_TRUE(tensors_near(CloudInterpolation(sources, targets, {.num_neighbors = 9, .power = 600})(at::ones({3, 2}, at::kDouble)), at::ones({3, 2}, at::kDouble), 1e-15));
}

TEST(CloudInterpolation, TakesTheMeanOfSourcesInOnePlace)
{
    const auto sources = at::zeros({3, 2}, at::kDouble).index_fill(0, at::tensor({2}, at::kLong), 1.0);

    const auto found = CloudInterpolation(sources, at::zeros({1, 2}, at::kDouble), {.num_neighbors = 3})(at::tensor({1.0, 4.0, 100.0}, at::kDouble));

    EXPECT_EQ(found.item<double>(), 2.5);
}

TEST(CloudInterpolation, BetweenTwoPartitionsIsThatOfTheWhole)
{
    const auto sources = scattered(80, 0), targets = scattered(50, 0.3), values = scattered(80, 7), weights = scattered(50, 9);
    for (const std::int64_t k : {1, 5}) {
        auto v0 = values.clone().requires_grad_();
        const auto whole = CloudInterpolation(sources, targets, {.num_neighbors = k})(v0);
        (whole * weights).sum().backward();
        for (const int ranks : {1, 2, 3, 5}) {
            std::vector<int> source_owners(80), target_owners(50);
            for (int i = 0; i < 80; ++i) source_owners[i] = i * i % 7 % std::max(1, ranks - (ranks > 2));   // the last rank of many has none
            for (int i = 0; i < 50; ++i) target_owners[i] = i % ranks;
            run_ranks(ranks, [&](const auto& mesh) {
                const auto rows_of = [&](const std::vector<int>& all) { return owned(all, static_cast<int>(mesh->coordinate(0))); };
                const auto own = [&](const at::Tensor& tensor, const std::vector<int>& all) { return tensor.index_select(0, at::tensor(rows_of(all)->global_ids, at::kLong)); };
                const auto source_spec = shard_spec(rows_of(source_owners), mesh), target_spec = shard_spec(rows_of(target_owners), mesh);
                auto v = own(values, source_owners).requires_grad_();
                const CloudInterpolation interpolation(from_local(own(sources, source_owners), source_spec), from_local(own(targets, target_owners), target_spec), {.num_neighbors = k});

                const auto found = interpolation(from_local(v, source_spec));
                (to_local(found) * own(weights, target_owners)).sum().backward();

                EXPECT_TRUE(tensors_near(local_of(found.detach()), own(whole.detach(), target_owners), 1e-14));
                EXPECT_TRUE(tensors_near(v.grad(), own(v0.grad(), source_owners), 1e-14));
            });
        }
    }
}

TEST(CloudInterpolation, RefusesWhatItCannotUse)
{
    const auto points = scattered(4, 0);
    EXPECT_TRUE(throws_with<InvalidInput>("power", [&] { CloudInterpolation(points, points, {.power = 0}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no points", [&] { CloudInterpolation(points.narrow(0, 0, 0), points); }));
    EXPECT_TRUE(throws_with<InvalidInput>("features of 3 rows", [&] { CloudInterpolation(points, points)(at::ones({3})); }));
}

}  // namespace
}  // namespace meshard
