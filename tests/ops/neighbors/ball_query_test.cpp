// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/ball_query.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

const std::vector<RadiusLimit> kLimits{{0.3, 4}, {0.7, 9}};

/// Straight from the definition: nearest first.
at::Tensor expected_rows(const at::Tensor& points, const at::Tensor& queries, const RadiusLimit& limit)
{
    auto result = torch::zeros({queries.size(0), limit.max_neighbors, 3}, points.options());
    for (std::int64_t i = 0; i < queries.size(0); ++i) {
        const auto distances = (points - queries[i]).square().sum(1).sqrt();
        const auto order = distances.argsort();
        for (std::int64_t k = 0; k < limit.max_neighbors; ++k) {
            const auto at = order[k].item<std::int64_t>();
            if (distances[at].item<double>() <= limit.radius) result[i][k] = points[at];
        }
    }
    return result.flatten(1);
}

TEST(BallQuery, PutsNeighboursSideBySideAndZerosBehindThem)
{
    torch::manual_seed(1);
    const auto points = torch::rand({2, 40, 3}, torch::kDouble), queries = torch::rand({2, 11, 3}, torch::kDouble);

    const auto found = ball_query(points, queries, kLimits, NeighborOrder::Nearest);

    ASSERT_EQ(found.size(), 2u);
    for (std::size_t l = 0; l < kLimits.size(); ++l) {
        for (int b = 0; b < 2; ++b)
            EXPECT_TRUE(torch::equal(found[l][b], expected_rows(points[b], queries[b], kLimits[l]))) << l << ' ' << b;
    }
}

class ShardedBallQuery : public testing::TestWithParam<std::tuple<int, bool, bool, NeighborOrder>> {};

TEST_P(ShardedBallQuery, EqualsSerialForwardAndBackward)
{
    const auto [num_ranks, cut_points, cut_queries, order] = GetParam();
    torch::manual_seed(2);
    const auto points = torch::rand({2, 40, 3}, torch::kDouble).requires_grad_(),
               queries = torch::rand({2, 23, 3}, torch::kDouble);
    const auto weight = torch::randn({2, 23, 27}, torch::kDouble);
    const auto expected = ball_query(points, queries, kLimits, order);
    (expected[1] * weight).sum().backward();

    run_ranks(num_ranks, [&, cut_points = cut_points, cut_queries = cut_queries,
                          order = order](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank();
        // All but a few rows on rank 1, none on rank 0.
        const auto begin = [&](std::int64_t n, int r) { return r <= 1 ? 0 : n - 2 * (num_ranks - r); };
        const auto own = [&](const at::Tensor& whole) {
            return num_ranks == 1 ? whole
                                  : whole.narrow(1, begin(whole.size(1), rank),
                                                 begin(whole.size(1), rank + 1) - begin(whole.size(1), rank));
        };
        const auto shard = [&](const at::Tensor& whole) { return from_local(own(whole), device_mesh, {Shard(1)}); };
        const auto local = (cut_points ? own(points.detach()) : points.detach()).clone().requires_grad_();

        const auto found = ball_query(cut_points ? from_local(local, device_mesh, {Shard(1)}) : local,
                                      cut_queries ? shard(queries) : queries, kLimits, order);
        for (std::size_t l = 0; l < found.size(); ++l) {
            const auto whole = is_sharded(found[l]) ? full_tensor(found[l]) : found[l];
            EXPECT_TRUE(torch::equal(whole, expected[l])) << l;
        }
        (found[1] * (cut_queries ? shard(weight) : weight)).sum().backward();

        EXPECT_TRUE(torch::allclose(local.grad(), cut_points ? own(points.grad()) : points.grad(), 1e-13, 1e-13));
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedBallQuery,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Bool(), testing::Bool(),
                                          testing::Values(NeighborOrder::Nearest, NeighborOrder::Grid)));

TEST(BallQuery, RefusesWhatHasNoRows)
{
    const auto points = torch::rand({1, 4, 3});
    EXPECT_TRUE(throws_with<InvalidInput>("no max_neighbors",
                                          [&] { ball_query(points, points, {{0.3}}, NeighborOrder::Nearest); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the points have 2 dimensions",
                                          [&] { ball_query(points[0], points, kLimits, NeighborOrder::Nearest); }));
    EXPECT_TRUE(throws_with<InvalidInput>("1 clouds of points and 2 of queries", [&] {
        ball_query(points, points.expand({2, -1, -1}), kLimits, NeighborOrder::Nearest);
    }));
}

}  // namespace
}  // namespace meshard
