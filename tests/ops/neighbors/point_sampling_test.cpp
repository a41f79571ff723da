// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_sampling.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace meshard {
namespace {

at::Tensor partly_coincident(std::int64_t n)
{
    auto points = at::arange(n * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().view({n, 3});
    points.narrow(0, n / 2, n / 4)
        .copy_(points.narrow(0, 0, n / 4).mul(4).round().div(4));  // some on a lattice, some in one place
    return points;
}

std::vector<std::int64_t> ids_of(const at::Tensor& ids)
{
    return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel()};
}

TEST(PointSampling, DoesNotDependOnThePartition)
{
    const auto points = partly_coincident(200);
    const auto whole = ids_of(random_sample(points, 37, 5).ids);
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
        for (const auto& [kind, owners] : point_partitions(points, ranks)) {
            SCOPED_TRACE(std::to_string(ranks) + " ranks, " + kind);
            run_ranks(ranks, [&, &owners = owners](const auto& mesh) {
                const CutPoints rows(owners, mesh);

                const auto found = random_sample(rows.cut(points), 37, 5);

                EXPECT_TRUE(at::equal(rows.ids.index_select(0, found.rows), found.ids));
                std::vector<std::int64_t> expected;  // those of the whole that lie here, in their order
                std::copy_if(whole.begin(), whole.end(), std::back_inserter(expected),
                             [&](auto id) { return owners[id] == mesh->coordinate(0); });
                EXPECT_EQ(ids_of(found.ids), expected);
            });
        }
    }
}

TEST(PointSampling, RandomSamplesAreOfTheCountAndEven)
{
    const auto points = at::zeros({50, 1});
    std::vector<int> counts(50);
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
        const auto ids = ids_of(random_sample(points, 10, seed).ids);
        ASSERT_EQ(ids.size(), 10u);
        ASSERT_TRUE(std::is_sorted(ids.begin(), ids.end()));
        for (const auto id : ids) ++counts[id];
    }

    // 400 times each, standard deviation 18.
    for (const int count : counts) EXPECT_NEAR(count, 400, 90);
    EXPECT_EQ(random_sample(points, 50).ids.numel(), 50);
    EXPECT_EQ(random_sample(points, 0).ids.numel(), 0);
    const auto few = ids_of(random_sample(points, 5, 1).ids), more = ids_of(random_sample(points, 20, 1).ids);
    EXPECT_TRUE(std::includes(more.begin(), more.end(), few.begin(), few.end()));
}

TEST(PointSampling, RefusesWrongArgumentsOnEveryRank)
{
    const auto points = partly_coincident(8);
    EXPECT_TRUE(throws_with<InvalidInput>("9 rows are asked for, there are 8", [&] { random_sample(points, 9); }));
    EXPECT_TRUE(throws_with<InvalidInput>("-1 rows", [&] { random_sample(points, -1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("expected rows", [&] { random_sample(at::zeros({}), 0); }));
}

}  // namespace
}  // namespace meshard
