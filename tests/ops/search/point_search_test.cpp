// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_search.h"
#include "partition/error.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace meshard {
namespace {

template <class T>
struct Cloud {
    std::string name;
    std::vector<T> points, queries;
    int dimensions;
    std::vector<double> period;
};

/// Every pair looked at, sorted by (squared distance, id).
template <class T>
std::vector<std::pair<T, std::int32_t>> nearest_of_all(const Cloud<T>& cloud, std::size_t query)
{
    const auto dimensions = static_cast<std::size_t>(cloud.dimensions);
    const auto wrap = [&](T x, std::size_t d) {
        if (cloud.period.empty() || cloud.period[d] == 0) return x;
        const auto length = static_cast<T>(cloud.period[d]);
        return x - length * std::floor(x / length);
    };
    std::vector<std::pair<T, std::int32_t>> all;
    for (std::size_t i = 0; i * dimensions < cloud.points.size(); ++i) {
        volatile T sum = 0;  // no fused operations
        for (std::size_t d = 0; d < dimensions; ++d) {
            T gap =
                std::abs(wrap(cloud.points[i * dimensions + d], d) - wrap(cloud.queries[query * dimensions + d], d));
            if (!cloud.period.empty() && cloud.period[d] > 0)
                gap = std::min(gap, static_cast<T>(cloud.period[d]) - gap);
            volatile T square = gap * gap;
            sum = sum + square;
        }
        all.emplace_back(sum, static_cast<std::int32_t>(i));
    }
    std::sort(all.begin(), all.end());
    return all;
}

template <class T>
void expect_row(const NeighborLists<T>& found, std::size_t query,
                const std::vector<std::pair<T, std::int32_t>>& expected)
{
    const auto begin = found.offsets[query];
    ASSERT_EQ(found.offsets[query + 1] - begin, static_cast<std::int64_t>(expected.size())) << "query " << query;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(found.ids[begin + i], expected[i].second) << "query " << query << ", neighbour " << i;
        ASSERT_EQ(found.distances[begin + i], std::sqrt(expected[i].first)) << "query " << query << ", neighbour " << i;
    }
}

template <class T>
std::vector<Cloud<T>> clouds()
{
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> unit(0, 1);
    const auto draw = [&](std::size_t count) {
        std::vector<T> values(count);
        for (auto& value : values) value = static_cast<T>(unit(random));
        return values;
    };
    std::vector<Cloud<T>> all;
    for (const int d : {1, 2, 3}) {
        all.push_back({"uniform " + std::to_string(d), draw(400 * d), draw(90 * d), d, {}});
        all.push_back({"periodic " + std::to_string(d), draw(300 * d), draw(80 * d), d, std::vector<double>(d, 0.5)});
    }
    auto self = draw(3 * 700);
    all.push_back({"self", self, self, 3, {}});
    Cloud<T> lattice{"lattice", {}, {}, 3, {}};
    for (int i = 0; i < 343; ++i) {
        for (const int x : {i % 7, i / 7 % 7, i / 49}) lattice.points.push_back(static_cast<T>(x));
    }
    lattice.queries = lattice.points;
    all.push_back(lattice);
    lattice.name = "periodic lattice, one axis open";
    lattice.period = {7, 0, 7};
    all.push_back(lattice);
    Cloud<T> graded{"graded, far queries", draw(3 * 500), {}, 3, {}};
    for (std::size_t i = 0; i < graded.points.size(); ++i) graded.points[i] = std::pow(graded.points[i], T(6));
    graded.queries.assign(graded.points.begin(), graded.points.begin() + 150);
    for (const double x : {50.0, -20.0, 3.0, 0.5, 0.5, 900.0}) graded.queries.push_back(static_cast<T>(x));
    all.push_back(graded);
    Cloud<T> copies{"duplicates", draw(3 * 60), {}, 3, {}};
    const auto once = copies.points;
    for (int i = 0; i < 4; ++i) copies.points.insert(copies.points.end(), once.begin(), once.end());
    copies.queries = copies.points;
    all.push_back(copies);
    all.push_back({"coincident", std::vector<T>(3 * 300, T(0.25)), std::vector<T>(3 * 40, T(0.25)), 3, {}});
    all.push_back({"one point", draw(3), draw(3 * 5), 3, {}});
    all.push_back({"no points", {}, draw(3 * 5), 3, {}});
    all.push_back({"no queries", draw(3 * 5), {}, 3, {}});
    return all;
}

template <class T>
class PointSearchOf : public testing::Test {};
using SearchTypes = testing::Types<float, double>;
TYPED_TEST_SUITE(PointSearchOf, SearchTypes);

TYPED_TEST(PointSearchOf, FindsTheNearestAsBruteForceDoes)
{
    for (const auto& cloud : clouds<TypeParam>()) {
        SCOPED_TRACE(cloud.name);
        const PointSearch<TypeParam> search(cloud.points, cloud.dimensions, cloud.period);
        for (const std::int64_t k : {1, 2, 5, 16, 40, 1000}) {
            const auto found = search.knn(cloud.queries, k);

            ASSERT_EQ(found.offsets.size(), cloud.queries.size() / cloud.dimensions + 1);
            for (std::size_t i = 0; i + 1 < found.offsets.size(); ++i) {
                auto expected = nearest_of_all(cloud, i);
                expected.resize(std::min<std::size_t>(k, expected.size()));
                expect_row(found, i, expected);
                if (this->HasFatalFailure()) return;
            }
        }
    }
}

TYPED_TEST(PointSearchOf, FindsWhatLiesWithinEachRadius)
{
    for (const auto& cloud : clouds<TypeParam>()) {
        SCOPED_TRACE(cloud.name);
        const PointSearch<TypeParam> search(cloud.points, cloud.dimensions, cloud.period);
        const std::vector<RadiusLimit> limits{
            {0.05, 4}, {0.1, kAllNeighbors}, {1.0, 7}, {1.0, kAllNeighbors}, {100, 12}, {1e-6, 3}};

        const auto found = search.within(cloud.queries, limits);

        for (std::size_t l = 0; l < limits.size(); ++l) {
            const auto radius = static_cast<TypeParam>(limits[l].radius);
            for (std::size_t i = 0; i + 1 < found[l].offsets.size(); ++i) {
                auto expected = nearest_of_all(cloud, i);
                std::erase_if(expected, [&](const auto& pair) { return pair.first > radius * radius; });
                if (static_cast<std::int64_t>(expected.size()) > limits[l].max_neighbors)
                    expected.resize(limits[l].max_neighbors);
                expect_row(found[l], i, expected);
                if (this->HasFatalFailure()) return;
            }
        }
    }
}

TYPED_TEST(PointSearchOf, LeavesOutWhatIsExcludedAndBeyondTheBound)
{
    for (const auto& cloud : clouds<TypeParam>()) {
        SCOPED_TRACE(cloud.name);
        const auto num_queries = cloud.queries.size() / cloud.dimensions;
        std::vector<std::int32_t> excluded(num_queries);
        std::vector<TypeParam> bounds(num_queries);
        for (std::size_t i = 0; i < num_queries; ++i) {
            excluded[i] = i % 3 == 2 ? -1 : static_cast<std::int32_t>(i);
            bounds[i] = static_cast<TypeParam>(0.02 * (i % 4));
        }
        const PointSearch<TypeParam> search(cloud.points, cloud.dimensions, cloud.period);

        const auto nearest = search.knn(cloud.queries, 6, excluded, bounds);
        const auto within = search.within(cloud.queries, std::vector<RadiusLimit>{{0.2, 5}}, excluded);

        for (std::size_t i = 0; i < num_queries; ++i) {
            auto others = nearest_of_all(cloud, i);
            std::erase_if(others, [&](const auto& pair) { return pair.second == excluded[i]; });
            auto bounded = others, near = others;
            std::erase_if(bounded, [&](const auto& pair) { return pair.first > bounds[i]; });
            std::erase_if(near, [&](const auto& pair) {
                return pair.first > static_cast<TypeParam>(0.2) * static_cast<TypeParam>(0.2);
            });
            bounded.resize(std::min<std::size_t>(6, bounded.size()));
            near.resize(std::min<std::size_t>(5, near.size()));
            expect_row(nearest, i, bounded);
            expect_row(within[0], i, near);
            if (this->HasFatalFailure()) return;
        }
    }
}

TEST(PointSearch, GivesTheSameOnThreads)
{
    std::mt19937_64 random(8);
    std::uniform_real_distribution<float> unit(0, 1);
    std::vector<float> points(3 * 20'000);
    for (auto& x : points) x = unit(random);
    const SearchPieces pieces{4, [](std::int64_t count, const std::function<void(std::int64_t)>& work) {
                                  std::vector<std::thread> threads;
                                  for (std::int64_t i = 0; i < count; ++i) threads.emplace_back(work, i);
                                  for (auto& thread : threads) thread.join();
                              }};
    const PointSearch<float> alone(points, 3), shared(points, 3, {}, pieces);
    const std::vector<RadiusLimit> limits{{0.05}, {0.02}};

    const auto nearest = alone.knn(points, 16), nearest_shared = shared.knn(points, 16);
    const auto within = alone.within(points, limits), within_shared = shared.within(points, limits);

    EXPECT_EQ(nearest.ids, nearest_shared.ids);
    EXPECT_EQ(nearest.distances, nearest_shared.distances);
    for (std::size_t i = 0; i < limits.size(); ++i) {
        EXPECT_EQ(within[i].offsets, within_shared[i].offsets);
        EXPECT_EQ(within[i].ids, within_shared[i].ids);
    }
}

TEST(PointSearch, TakesAMillionCoincidentPoints)
{
    const PointSearch<float> search(std::vector<float>(3'000'000, 1.0f), 3);

    const auto found = search.knn(std::vector<float>(3'000, 1.0f), 4);

    for (std::size_t i = 0; i < found.ids.size(); ++i) ASSERT_EQ(found.ids[i], static_cast<std::int32_t>(i % 4));
}

TEST(PointSearch, SaysWhatIsWrong)
{
    const std::vector<double> points{0, 0, 0, 1, 1, 1};
    const PointSearch<double> search(points, 3);
    const auto infinite = std::numeric_limits<double>::infinity(), nan = std::nan("");

    EXPECT_TRUE(throws_with<InvalidInput>("knn: k is 0", [&] { search.knn(points, 0); }));
    EXPECT_TRUE(throws_with<InvalidInput>("4 dimensions", [&] { PointSearch<double>(points, 4); }));
    EXPECT_TRUE(throws_with<InvalidInput>("no multiple", [&] { search.knn(std::vector<double>{1, 2}, 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 1 of the queries",
                                          [&] { search.knn(std::vector<double>{1, 2, 3, 4, nan, 6}, 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 0 of the points",
                                          [&] { PointSearch<double>(std::vector<double>{0, infinite, 0}, 3); }));
    EXPECT_TRUE(throws_with<InvalidInput>("1e+18", [&] { PointSearch<float>(std::vector<float>{0, 2e18f, 0}, 3); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("period", [&] { PointSearch<double>(points, 3, std::vector<double>{1, -1, 1}); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("2 periods", [&] { PointSearch<double>(points, 3, std::vector<double>{1, 1}); }));
    for (const double radius : {0.0, -1.0, nan, infinite}) {
        EXPECT_TRUE(throws_with<InvalidInput>("the radius is",
                                              [&] { search.within(points, std::vector<RadiusLimit>{{radius}}); }));
    }
    EXPECT_TRUE(throws_with<InvalidInput>("max_neighbors is 0",
                                          [&] { search.within(points, std::vector<RadiusLimit>{{1.0, 0}}); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("excluded ids", [&] { search.knn(points, 1, std::vector<std::int32_t>{1}); }));
}

}  // namespace
}  // namespace meshard
