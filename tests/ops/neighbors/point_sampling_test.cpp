// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_sampling.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/point_partitions.h"
#include "tests/support/run_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace meshard {
namespace {

at::Tensor partly_coincident(std::int64_t n)
{
    auto points = at::arange(n * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().view({n, 3});
    points.narrow(0, n / 2, n / 4).copy_(points.narrow(0, 0, n / 4).mul(4).round().div(4));  // some on a lattice, some in one place
    return points;
}

std::vector<std::int64_t> ids_of(const at::Tensor& ids)
{
    return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + ids.numel()};
}

double distance_squared(const at::Tensor& points, std::int64_t a, std::int64_t b)
{
    const auto* x = points.const_data_ptr<double>();
    double sum = 0;
    for (int d = 0; d < 3; ++d) sum += std::pow(x[3 * a + d] - x[3 * b + d], 2);
    return sum;
}

using Sampler = std::function<PointSample(const at::Tensor&)>;

const std::map<std::string, Sampler>& samplers()
{
    static const std::map<std::string, Sampler> all{{"random", [](const at::Tensor& x) { return random_sample(x, 37, 5); }},
                                                    {"voxel", [](const at::Tensor& x) { return voxel_sample(x, 0.21); }},
                                                    {"poisson disk", [](const at::Tensor& x) { return poisson_disk_sample(x, 0.25, 3); }},
                                                    {"farthest point", [](const at::Tensor& x) { return farthest_point_sample(x, 60, 17); }}};
    return all;
}

TEST(PointSampling, DoesNotDependOnThePartition)
{
    const auto points = partly_coincident(200);
    for (const auto& [name, sample] : samplers()) {
        const auto whole = ids_of(sample(points).ids);
        for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
            for (const auto& [kind, owners] : point_partitions(points, ranks)) {
                SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks, " + kind);
                run_ranks(ranks, [&, &sample = sample, &owners = owners](const auto& mesh) {
                    const CutPoints rows(owners, mesh);

                    const auto found = sample(rows.cut(points));

                    EXPECT_TRUE(at::equal(rows.ids.index_select(0, found.rows), found.ids));
                    std::vector<std::int64_t> expected;  // those of the whole that lie here, in their order
                    std::copy_if(whole.begin(), whole.end(), std::back_inserter(expected), [&](auto id) { return owners[id] == mesh->coordinate(0); });
                    EXPECT_EQ(ids_of(found.ids), expected);
                });
            }
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

TEST(PointSampling, VoxelSamplesHoldTheMiddlemostPointOfEach)
{
    const auto points = partly_coincident(300);
    std::map<std::array<double, 3>, std::pair<double, std::int64_t>> best;
    for (std::int64_t i = 0; i < 300; ++i) {
        std::array<double, 3> voxel;
        double distance = 0;
        for (int d = 0; d < 3; ++d) {
            const double x = points[i][d].item<double>();
            voxel[d] = std::floor(x / 0.3);
            distance += std::pow(x - (voxel[d] + 0.5) * 0.3, 2);
        }
        const auto [place, is_new] = best.emplace(voxel, std::pair(distance, i));
        if (!is_new) place->second = std::min(place->second, std::pair(distance, i));
    }
    std::vector<std::int64_t> expected;
    for (const auto& [voxel, point] : best) expected.push_back(point.second);
    std::sort(expected.begin(), expected.end());

    EXPECT_EQ(ids_of(voxel_sample(points, 0.3).ids), expected);
}

TEST(PointSampling, PoissonDisksKeepTheirDistanceAndLeaveNoGap)
{
    const auto points = partly_coincident(400);
    constexpr double radius = 0.2;

    const auto chosen = ids_of(poisson_disk_sample(points, radius).ids);

    EXPECT_GT(chosen.size(), 20u);
    for (std::int64_t i = 0; i < 400; ++i) {
        double nearest = INFINITY;
        for (const auto id : chosen) {
            if (id != i) nearest = std::min(nearest, std::sqrt(distance_squared(points, i, id)));
        }
        const bool is_chosen = std::binary_search(chosen.begin(), chosen.end(), i);
        EXPECT_TRUE(is_chosen ? nearest >= radius : nearest < radius);
    }
    EXPECT_NE(chosen, ids_of(poisson_disk_sample(points, radius, 1).ids));
}

TEST(PointSampling, EveryNextPointIsFarthestFromThoseBefore)
{
    const auto points = partly_coincident(120);

    const auto chosen = ids_of(farthest_point_sample(points, 120, 4).ids);

    EXPECT_EQ(chosen[0], 4);
    std::set<std::int64_t> before{4};
    for (std::size_t step = 1; step < chosen.size(); ++step) {
        double farthest = -1;
        std::int64_t expected = -1;
        for (std::int64_t i = 0; i < 120; ++i) {
            if (before.count(i)) continue;
            double nearest = INFINITY;
            for (const auto id : before) nearest = std::min(nearest, distance_squared(points, i, id));
            if (nearest > farthest) {
                farthest = nearest;
                expected = i;
            }
        }
        ASSERT_EQ(chosen[step], expected);
        before.insert(expected);
    }
}

TEST(PointSampling, RefusesWrongArgumentsOnEveryRank)
{
    const auto points = partly_coincident(8);
    EXPECT_TRUE(throws_with<InvalidInput>("9 rows are asked for, there are 8", [&] { random_sample(points, 9); }));
    EXPECT_TRUE(throws_with<InvalidInput>("-1 rows", [&] { farthest_point_sample(points, -1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the first point is 8", [&] { farthest_point_sample(points, 2, 8); }));
    EXPECT_TRUE(throws_with<InvalidInput>("voxel size", [&] { voxel_sample(points, 0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Use larger voxels", [&] { voxel_sample(points, 1e-17); }));
    EXPECT_THROW(poisson_disk_sample(points, 0), InvalidInput);
    EXPECT_THROW(voxel_sample(at::zeros({3, 4}), 1), InvalidInput);
    run_ranks(3, [&](const auto& mesh) {
        auto own = at::rand({4, 3}, at::kDouble);
        if (mesh->coordinate(0) == 1) own[2][0] = std::nan("");
        const auto cut = from_local(own, mesh, {Shard(0)});
        EXPECT_THROW(voxel_sample(cut, 1), InvalidInput);
        EXPECT_THROW(farthest_point_sample(cut, 2), InvalidInput);
        EXPECT_THROW(poisson_disk_sample(cut, 1), InvalidInput);
    });
}

}  // namespace
}  // namespace meshard
