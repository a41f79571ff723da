// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/message_graph.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/expect_error.h"
#include "tests/support/owner_maps.h"
#include "tests/support/run_ranks.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace meshard {
namespace {

/// Two steps in which every node adds up what it hears, with a weight an edge.
at::Tensor two_steps(const MessageGraph& graph, at::Tensor nodes, const at::Tensor& edges)
{
    for (int step = 0; step < 2; ++step)
        nodes = nodes + graph.to_targets(graph.from_sources(nodes) * edges - 0.5 * graph.from_targets(nodes),
                                         SegmentReduction::Sum);
    return nodes;
}

/// What edges carry: how far their ends are apart, along two axes.
at::Tensor edge_values(const MessageGraph& graph, const at::Tensor& places)
{
    return (graph.from_sources(places) - graph.from_targets(places)).narrow(1, 0, 2);
}

/// Places of nodes that each hear of three, their values, and what results count for.
struct GraphCloud {
    static constexpr int kNodes = 40;

    at::Tensor places = torch::rand({kNodes, 3}, torch::kDouble), weight = torch::rand({kNodes, 2}, torch::kDouble);
    at::Tensor values = torch::rand({kNodes, 2}, torch::kDouble).requires_grad_();

    static MessageGraph graph_of(const at::Tensor& places)
    {
        return MessageGraph(knn(places, places, 3, {.exclude_self = true}));
    }
};

/// A rank's rows of whole tensors.
struct OwnRows {
    std::shared_ptr<const IndexMap> map;
    at::Tensor ids;
    SpecPtr spec;

    OwnRows(const std::vector<int>& owners, const std::shared_ptr<const DeviceMesh>& device_mesh)
        : map(owned(owners, device_mesh->all().rank())), ids(torch::tensor(map->global_ids, torch::kLong)),
          spec(shard_spec(map, device_mesh))
    {
    }

    at::Tensor of(const at::Tensor& whole) const { return whole.detach().index_select(0, ids); }
};

class GraphOnRanks : public testing::TestWithParam<int> {};

TEST_P(GraphOnRanks, DeepGhostsGiveTheSameBitsAndGradients)
{
    torch::manual_seed(2);
    const GraphCloud cloud;
    const auto serial = GraphCloud::graph_of(cloud.places);
    const auto expected = two_steps(serial, cloud.values, edge_values(serial, cloud.places));
    (expected * cloud.weight).sum().backward();
    std::vector<int> owners;
    for (int i = 0; i < GraphCloud::kNodes; ++i) owners.push_back(i * i % GetParam());

    run_ranks(GetParam(), [&](std::shared_ptr<const DeviceMesh> device_mesh) {
        const OwnRows own(owners, device_mesh);
        const auto places = from_local(own.of(cloud.places), own.spec);
        const auto graph = GraphCloud::graph_of(places);
        const DeepGraph deep(graph, 2);

        for (const bool is_deep : {false, true}) {
            const auto local = own.of(cloud.values).requires_grad_();
            const auto nodes = from_local(local, own.spec);
            const auto edges = edge_values(graph, places);
            const auto result = is_deep ? deep.owned_nodes(two_steps(deep.graph(), deep.with_ghost_nodes(nodes),
                                                                     deep.with_ghost_edges(edges)))
                                        : two_steps(graph, nodes, edges);
            (result * from_local(own.of(cloud.weight), own.spec)).sum().backward();

            EXPECT_TRUE(torch::equal(to_local(result), own.of(expected))) << "deep: " << is_deep;
            EXPECT_TRUE(torch::allclose(local.grad(), own.of(cloud.values.grad()), 1e-13, 1e-14))
                << "deep: " << is_deep;
        }
        const auto nodes = deep.with_ghost_nodes(from_local(own.of(cloud.values), own.spec)),
                   edges = deep.with_ghost_edges(edge_values(graph, places));
        device_mesh->counter().reset();
        two_steps(deep.graph(), nodes, edges);
        EXPECT_EQ(device_mesh->counter().num_calls(), 0) << "nothing travels between the steps";
    });
}

/// Two steps that work out edges anew, and keep them apart by whether their targets hear of ghosts.
at::Tensor two_updates(const MessageGraph& graph, at::Tensor nodes, const at::Tensor& encoded_edges,
                       SegmentReduction reduction, at::Tensor* last_edges = nullptr)
{
    auto edges = graph.parts_of(encoded_edges);
    for (int step = 0; step < 2; ++step) {
        edges = graph.updated_edges(nodes, 0.5 * nodes, edges,
                                    [](const at::Tensor& own, const at::Tensor& sources, const at::Tensor& targets) {
                                        return own + (sources * targets).tanh();
                                    });
        nodes = nodes + graph.to_targets(edges, reduction);
    }
    if (last_edges) *last_edges = graph.whole(edges);
    return nodes;
}

TEST_P(GraphOnRanks, EdgesInPartsGiveTheSameBitsAndGradients)
{
    torch::manual_seed(3);
    const GraphCloud cloud;
    const auto serial = GraphCloud::graph_of(cloud.places);
    std::vector<int> owners;  // rank 1 has none where there are four or more
    for (int i = 0; i < GraphCloud::kNodes; ++i)
        owners.push_back(GetParam() > 3 && i % GetParam() == 1 ? 0 : i % GetParam());
    for (const auto reduction : {SegmentReduction::Sum, SegmentReduction::Mean, SegmentReduction::Max}) {
        cloud.values.mutable_grad() = at::Tensor();
        at::Tensor expected_edges;
        const auto expected =
            two_updates(serial, cloud.values, edge_values(serial, cloud.places), reduction, &expected_edges);
        (expected * cloud.weight).sum().backward();

        run_ranks(GetParam(), [&](std::shared_ptr<const DeviceMesh> device_mesh) {
            const OwnRows own(owners, device_mesh);
            const auto places = from_local(own.of(cloud.places), own.spec);
            const auto graph = GraphCloud::graph_of(places);
            const auto local = own.of(cloud.values).requires_grad_();
            const auto edges = edge_values(graph, places);
            at::Tensor last_edges;

            const auto result = two_updates(graph, from_local(local, own.spec), edges, reduction, &last_edges);
            (result * from_local(own.of(cloud.weight), own.spec)).sum().backward();

            EXPECT_TRUE(torch::equal(to_local(graph.whole(graph.parts_of(edges))), to_local(edges)));
            EXPECT_TRUE(torch::equal(to_local(result), own.of(expected)));
            EXPECT_TRUE(torch::equal(to_local(last_edges),
                                     own.of(expected_edges.view({GraphCloud::kNodes, 3, 2})).flatten(0, 1)));
            EXPECT_TRUE(torch::allclose(local.grad(), own.of(cloud.values.grad()), 1e-13, 1e-14));
        });
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GraphOnRanks, testing::Values(1, 2, 3, 4, 5, 7, 8));

TEST(FirstById, KeepsTheLowestIds)
{
    const auto points = torch::tensor({{0.0}, {1.0}, {2.0}, {3.0}}, torch::kDouble);
    const auto all = radius_search(points, torch::tensor({{2.1}, {9.0}}, torch::kDouble), 5.0);

    const auto first = first_by_id(all, 2);

    EXPECT_TRUE(torch::equal(first.ids, torch::tensor({0, 1}, torch::kLong)));
    EXPECT_TRUE(torch::equal(first.offsets, torch::tensor({0, 2, 2}, torch::kLong)));
    EXPECT_TRUE(torch::allclose(first.distances, torch::tensor({2.1, 1.1}, torch::kDouble)));
}

TEST(MessageGraph, RefusesSearchesThatAreNoGraph)
{
    const auto points = torch::rand({5, 3});
    EXPECT_TRUE(throws_with<InvalidInput>("the search had 2 queries and 5 points",
                                          [&] { MessageGraph graph(knn(points, points.narrow(0, 0, 2), 1)); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "are 3 targets", [&] { MessageGraph graph(knn(points, points.narrow(0, 0, 2), 1), points.narrow(0, 0, 3)); }));
    EXPECT_TRUE(throws_with<InvalidInput>("the nodes are not cut",
                                          [&] { DeepGraph deep(MessageGraph(knn(points, points, 1)), 2); }));
}

}  // namespace
}  // namespace meshard
