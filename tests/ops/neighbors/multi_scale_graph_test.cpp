// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/message_graph.h"
#include "ops/neighbors/multi_scale_graph.h"
#include "ops/neighbors/point_sampling.h"
#include "partition/error.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <set>
#include <utility>

namespace meshard {
namespace {

constexpr int kCloudPoints = 60;
const std::vector<std::int64_t> kLevels{7, 20, 41};
constexpr std::int64_t kNear = 3;

using Edges = std::set<std::pair<std::int64_t, std::int64_t>>;  // target and source

at::Tensor places()
{
    torch::manual_seed(5);
    return torch::rand({kCloudPoints, 3}, torch::kDouble);
}

std::vector<std::int64_t> sampled(const at::Tensor& points, std::int64_t count)
{
    const auto ids = random_sample(points, count).ids;
    return {ids.const_data_ptr<std::int64_t>(), ids.const_data_ptr<std::int64_t>() + count};
}

/// By comparing all pairs; in ids of the cloud.
Edges brute_force(const at::Tensor& points)
{
    Edges edges;
    for (const auto size : kLevels) {
        const auto level = sampled(points, size);
        for (const auto a : level) {
            std::vector<std::pair<double, std::int64_t>> near;
            for (const auto b : level) {
                if (a != b) near.emplace_back((points[a] - points[b]).norm().item<double>(), b);
            }
            std::sort(near.begin(), near.end());
            for (std::int64_t k = 0; k < kNear; ++k) edges.insert({{a, near[k].second}, {near[k].second, a}});
        }
    }
    for (const auto node : sampled(points, kLevels.back())) edges.emplace(node, node);
    return edges;
}

/// Of this rank's nodes; fails if an edge appears twice or a target's sources are not in ascending order.
Edges edges_of(const MultiScaleGraph& graph, const at::Tensor& cloud_ids, const std::vector<std::int64_t>& nodes)
{
    Edges edges;
    const auto offsets = graph.neighbors.offsets, ids = graph.neighbors.ids;
    for (std::int64_t i = 0; i < graph.rows.size(0); ++i) {
        const auto target = cloud_ids[graph.rows[i]].item<std::int64_t>();
        std::int64_t last = -1;
        for (auto e = offsets[i].item<std::int64_t>(); e < offsets[i + 1].item<std::int64_t>(); ++e) {
            const auto id = ids[e].item<std::int64_t>();
            EXPECT_GT(id, last);
            last = id;
            edges.emplace(target, nodes[id]);
        }
    }
    return edges;
}

TEST(MultiScaleGraph, JoinsTheNearestOfEachLevelBothWays)
{
    const auto points = places();
    const auto graph = multi_scale_graph(points, kLevels, kNear);
    EXPECT_EQ(graph.layout, nullptr);
    EXPECT_EQ(edges_of(graph, torch::arange(kCloudPoints), sampled(points, kLevels.back())), brute_force(points));
}

TEST(MultiScaleGraph, TakesAllPointsWhereALevelWantsMore)
{
    const auto points = places();
    const auto graph = multi_scale_graph(points, {1, 10, 1000, 1000}, kNear);
    EXPECT_TRUE(torch::equal(graph.rows, torch::arange(kCloudPoints)));
    EXPECT_EQ(multi_scale_graph(points, {1}, kNear).neighbors.ids.numel(), 1);  // itself
}

TEST(MultiScaleGraph, RefusesLevelsThatDoNotGrow)
{
    for (const std::vector<std::int64_t>& levels : {std::vector<std::int64_t>{}, {0, 4}, {5, 4}})
        EXPECT_TRUE(
            throws_with<InvalidInput>("levels must be positive", [&] { multi_scale_graph(places(), levels, kNear); }));
}

class MultiScaleOnRanks : public testing::TestWithParam<int> {};

TEST_P(MultiScaleOnRanks, HasTheEdgesSumsAndGradientsOfTheWhole)
{
    const auto points = places();
    const auto expected = brute_force(points);
    const auto nodes = sampled(points, kLevels.back());
    const auto whole = multi_scale_graph(points, kLevels, kNear);
    const MessageGraph graph_of_whole(whole.neighbors);
    const auto values = torch::rand({kCloudPoints, 2}, torch::kDouble),
               weights = torch::rand({static_cast<std::int64_t>(nodes.size()), 2}, torch::kDouble);
    auto leaf = values.clone().requires_grad_();
    const auto heard =
        graph_of_whole.to_targets(graph_of_whole.from_sources(leaf.index_select(0, whole.rows)), SegmentReduction::Sum);
    (heard * weights).sum().backward();

    std::vector<Edges> found(GetParam());
    run_ranks(GetParam(), [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const auto rank = device_mesh->all().rank(), num_ranks = device_mesh->all().size();
        std::vector<int> owners;  // the first rank has no point, the last most
        for (int i = 0; i < kCloudPoints; ++i)
            owners.push_back(i % 4 == 0 ? std::min(1, num_ranks - 1) : num_ranks - 1);
        const auto map = owned(owners, rank);
        const auto ids = torch::tensor(map->global_ids, torch::kLong);
        const auto spec = shard_spec(map, device_mesh);
        const auto graph = multi_scale_graph(from_local(points.index_select(0, ids), spec), kLevels, kNear);
        found[rank] = edges_of(graph, ids, nodes);

        const MessageGraph messages(graph.neighbors);
        auto own = values.index_select(0, ids).requires_grad_();
        const auto of_nodes = from_local(own.index_select(0, graph.rows), graph.layout);
        const auto sums = messages.to_targets(messages.from_sources(of_nodes), SegmentReduction::Sum);
        std::vector<std::int64_t> numbers;
        for (std::int64_t i = 0; i < graph.rows.size(0); ++i) {
            const auto id = ids[graph.rows[i]].item<std::int64_t>();
            numbers.push_back(std::lower_bound(nodes.begin(), nodes.end(), id) - nodes.begin());
        }
        const auto rows = torch::tensor(numbers, torch::kLong);
        EXPECT_TRUE(torch::allclose(to_local(sums), heard.detach().index_select(0, rows)));
        (to_local(sums) * weights.index_select(0, rows)).sum().backward();
        EXPECT_TRUE(torch::allclose(own.grad(), leaf.grad().index_select(0, ids)));
    });
    Edges all;
    std::size_t count = 0;
    for (const auto& edges : found) {
        all.insert(edges.begin(), edges.end());
        count += edges.size();
    }
    EXPECT_EQ(all, expected);
    EXPECT_EQ(count, expected.size());
}

INSTANTIATE_TEST_SUITE_P(Ranks, MultiScaleOnRanks, testing::Values(1, 2, 3));

}  // namespace
}  // namespace meshard
