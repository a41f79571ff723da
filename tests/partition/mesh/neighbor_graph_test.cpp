// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/neighbor_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace meshard {
namespace {

Csr brute_force(const DataArray& points, std::int32_t k)
{
    Csr neighbors;
    for (std::int64_t i = 0; i < points.num_rows(); ++i) {
        std::vector<std::pair<double, std::int32_t>> others;
        for (std::int64_t j = 0; j < points.num_rows(); ++j) {
            double distance_squared = 0;
            for (int axis = 0; axis < 3; ++axis) {
                const auto d = points.value(i, axis) - points.value(j, axis);
                distance_squared += d * d;
            }
            if (i != j) others.emplace_back(distance_squared, static_cast<std::int32_t>(j));
        }
        std::ranges::sort(others);
        std::vector<std::int32_t> row;
        for (std::size_t n = 0; n < others.size() && n < static_cast<std::size_t>(k); ++n)
            row.push_back(others[n].second);
        neighbors.push_row(row);
    }
    return neighbors;
}

TEST(NearestNeighbors, EqualBruteForce)
{
    for (const std::int32_t n : {0, 1, 2, 9, 300})
        for (const std::int32_t k : {1, 3, 8, 20}) {
            const auto points = random_cloud(n, 7).points;
            EXPECT_EQ(nearest_neighbors(points, k), brute_force(points, k)) << n << " points, k = " << k;
        }
}

TEST(NearestNeighbors, BreakTiesByIndex)
{
    // A grid is all ties; numbered backwards in the second half so that the tree's order is not the index order.
    const auto points = cube(5).points;
    std::vector<std::int32_t> order(points.num_rows());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = static_cast<std::int32_t>(i % 2 ? order.size() - 1 - i / 2 : i / 2);
    const auto shuffled = points.gather(order);

    for (const std::int32_t k : {1, 4, 8, 30})
        EXPECT_EQ(nearest_neighbors(shuffled, k), brute_force(shuffled, k)) << "k = " << k;
}

TEST(NearestNeighbors, KnowDuplicatePoints)
{
    std::vector<double> coordinates;
    for (int i = 0; i < 60; ++i) coordinates.insert(coordinates.end(), {i % 4 * 1.0, 0.0, -2.0});
    const auto points = DataArray::from("Points", std::move(coordinates), 3);

    EXPECT_EQ(nearest_neighbors(points, 8), brute_force(points, 8));
}

TEST(NearestNeighbors, AreQuickAmongManyEqualPoints)
{
    // One place holds all but a few points; searched one against all this would take minutes.
    constexpr std::int32_t n = 300000;
    std::vector<float> coordinates(3 * n, 0.5f);
    coordinates[3 * 7] = 2.0f;
    coordinates[3 * 9 + 1] = -0.0f;
    coordinates[3 * 11 + 1] = 0.0f;
    const auto points = DataArray::from("Points", std::move(coordinates), 3);

    const auto neighbors = nearest_neighbors(points, 3);

    const auto row = [&](std::int64_t i) { return std::vector(neighbors.row(i).begin(), neighbors.row(i).end()); };
    EXPECT_EQ(row(0), (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(row(2), (std::vector<std::int32_t>{0, 1, 3}));
    EXPECT_EQ(row(n - 1), (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_EQ(row(7), (std::vector<std::int32_t>{0, 1, 2}));
    EXPECT_EQ(row(9), (std::vector<std::int32_t>{11, 0, 1}));
}

TEST(NearestNeighborGraph, IsSymmetricWithAscendingRows)
{
    const auto points = random_cloud(200, 11).points;
    std::set<std::pair<std::int32_t, std::int32_t>> edges;
    const auto directed = brute_force(points, 8);
    for (std::int32_t i = 0; i < 200; ++i)
        for (const auto j : directed.row(i)) {
            edges.emplace(i, j);
            edges.emplace(j, i);
        }
    Csr expected;
    for (std::int32_t i = 0; i < 200; ++i) {
        std::vector<std::int32_t> row;
        for (const auto& [from, to] : edges)
            if (from == i) row.push_back(to);
        expected.push_row(row);
    }

    EXPECT_EQ(nearest_neighbor_graph(points, 8), expected);
}

TEST(PointTree, EqualsBruteForce)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const auto grid = cube(4).points, random = random_cloud(200, 3).points;
    const auto twice = grid.gather(std::vector<std::int32_t>{5, 9, 5, 5, 40, 9, 5, 60, 61, 62});
    for (const auto* points : {&grid, &random, &twice}) {
        const PointTree tree(*points);
        for (const double x : {-0.3, 0.25, 0.5, 0.61, 2.0})
            for (const std::int32_t k : {1, 4, 30, 500})
                for (const double most_squared : {0.0, 0.0625, 0.3, infinity}) {
                    const std::array<double, 3> place{x, 0.5, 0.25};
                    std::vector<PointTree::Found> expected;
                    for (std::int32_t i = 0; i < points->num_rows(); ++i) {
                        double sum = 0;
                        for (int axis = 0; axis < 3; ++axis)
                            sum += (place[axis] - points->value(i, axis)) * (place[axis] - points->value(i, axis));
                        if (sum <= most_squared) expected.push_back({sum, i});
                    }
                    EXPECT_EQ(tree.has_any_within(place, std::sqrt(most_squared)), !expected.empty())
                        << x << ' ' << most_squared;
                    std::ranges::sort(expected);
                    if (std::ssize(expected) > k) expected.resize(k);
                    EXPECT_EQ(tree.nearest(place, k, most_squared), expected) << x << ' ' << k << ' ' << most_squared;
                }
    }
    const PointTree none(DataArray("Points", ScalarType::Float32, 0, 3));
    EXPECT_TRUE(none.nearest({0, 0, 0}, 3, infinity).empty());
    EXPECT_FALSE(none.has_any_within({0, 0, 0}, 1));
}

TEST(NearestNeighbors, RefuseWhatIsNoPoint)
{
    const auto with = [](double bad) { return DataArray::from("Points", std::vector<double>{0, 0, 0, 1, bad, 0}, 3); };
    const auto nan = std::numeric_limits<double>::quiet_NaN();
    const auto infinity = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(throws_with<InvalidInput>("point 1 has the coordinate nan", [&] { nearest_neighbors(with(nan), 1); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("point 1 has the coordinate inf", [&] { nearest_neighbors(with(infinity), 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("at most 1e150", [&] { nearest_neighbors(with(-1e200), 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("k is 0", [&] { nearest_neighbors(with(0), 0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("2 components",
                                          [] { nearest_neighbors(DataArray("P", ScalarType::Float32, 3, 2), 1); }));
}

}  // namespace
}  // namespace meshard
