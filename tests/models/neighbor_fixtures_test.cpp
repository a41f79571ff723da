// SPDX-License-Identifier: Apache-2.0
// Neighbours that the reference package found.
#include "ops/neighbors/neighbors.h"
#include "tests/support/fixture_cases.h"
#include "tests/support/fixture_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <set>

namespace meshard {
namespace {

using test::FixtureCase;
using test::NamedTensors;

class NeighborFixtures : public testing::TestWithParam<FixtureCase> {};

/// (queries, k) of a list with a row of at most k entries a query; `fill` where there are fewer.
at::Tensor as_table(const Neighbors& found, const at::Tensor& entries, std::int64_t k, double fill)
{
    const auto num_queries = found.offsets.size(0) - 1;
    auto table = at::full({num_queries, k}, fill, entries.options());
    for (std::int64_t i = 0; i < num_queries; ++i) {
        const auto begin = found.offsets[i].item<std::int64_t>(),
                   count = found.offsets[i + 1].item<std::int64_t>() - begin;
        table[i].narrow(0, 0, count).copy_(entries.narrow(0, begin, count));
    }
    return table;
}

void compare_nearest(const nlohmann::json& description, const NamedTensors& tensors)
{
    const auto k = description["k"].get<std::int64_t>();

    const auto found = knn(tensors.at("input.points"), tensors.at("input.queries"), k);

    const auto expected = tensors.at("scipy.distances");
    const auto distances = as_table(found, found.distances, k, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(at::allclose(distances, expected, 1e-6, 1e-12));
    if (description["queries_with_ties"].get<int>() == 0) {
        const auto n = static_cast<double>(tensors.at("input.points").size(0));
        EXPECT_TRUE(at::equal(as_table(found, found.ids, k, n), tensors.at("scipy.indices")));
    }
}

void compare_first_of_the_walk(const nlohmann::json& description, const NamedTensors& tensors)
{
    const auto radius = description["radius"].get<double>();
    const auto k = description["max_points"].get<std::int64_t>();
    const auto points = tensors.at("input.points"), queries = tensors.at("input.queries");

    const auto found = radius_search(points, queries, radius, k, {.order = NeighborOrder::Grid});

    const auto expected = tensors.at("warp.indices").to(at::kLong);
    EXPECT_TRUE(at::equal(as_table(found, found.ids, k, 0).view_as(expected), expected));
    EXPECT_TRUE(at::allclose(as_table(found, found.distances, k, 0).view_as(expected), tensors.at("warp.distances"),
                             1e-5, 1e-6));
    EXPECT_TRUE(
        at::equal(found.offsets.diff().view_as(tensors.at("warp.count")), tensors.at("warp.count").to(at::kLong)));

    const auto nearest = radius_search(points, queries, radius, k);
    EXPECT_TRUE(at::allclose(as_table(nearest, nearest.distances, k, 0).view_as(expected),
                             tensors.at("torch.distances"), 1e-5, 1e-6));
}

void compare_pairs(const nlohmann::json& description, const NamedTensors& tensors)
{
    const auto found =
        radius_search(tensors.at("input.points"), tensors.at("input.queries"), description["radius"].get<double>());

    const auto queries = at::arange(found.offsets.size(0) - 1, at::kLong).repeat_interleave(found.offsets.diff());
    const auto pairs = [](const at::Tensor& query, const at::Tensor& point) {
        std::set<std::pair<std::int64_t, std::int64_t>> set;
        for (std::int64_t i = 0; i < query.numel(); ++i)
            set.emplace(query[i].item<std::int64_t>(), point[i].item<std::int64_t>());
        return set;
    };
    const auto expected = tensors.at("warp.indices").to(at::kLong);
    EXPECT_EQ(found.ids.numel(), expected.size(1));
    EXPECT_EQ(pairs(queries, found.ids), pairs(expected[0], expected[1]));
}

TEST_P(NeighborFixtures, Agree)
{
    const auto description = GetParam().description();
    const auto tensors = test::read_tensors(GetParam().arrays_path());
    if (GetParam().kind == "knn") {
        compare_nearest(description, tensors);
    } else if (description["max_points"].is_null()) {
        compare_pairs(description, tensors);
    } else {
        compare_first_of_the_walk(description, tensors);
    }
}

INSTANTIATE_TEST_SUITE_P(All, NeighborFixtures, testing::ValuesIn(test::fixture_cases({"knn", "radius_search"})),
                         test::NameOfFixture());

}  // namespace
}  // namespace meshard
