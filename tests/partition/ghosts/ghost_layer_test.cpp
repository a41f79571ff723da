// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/four_partitions.h"
#include "tests/support/sample_meshes.h"

#include <deque>

namespace meshard {
namespace {

// Distance of every row from the part, one row at a time.
GhostLayer reference_layer(const Csr& graph, const Partition& partition, std::int32_t part, std::int32_t num_layers)
{
    std::vector<std::int32_t> distance(graph.num_rows(), -1);
    std::deque<std::int32_t> queue;
    for (std::int32_t i = 0; i < graph.num_rows(); ++i)
        if (partition.owners[i] == part) {
            distance[i] = 0;
            queue.push_back(i);
        }
    for (; !queue.empty(); queue.pop_front())
        for (const auto j : graph.row(queue.front()))
            if (distance[j] < 0) {
                distance[j] = distance[queue.front()] + 1;
                queue.push_back(j);
            }
    GhostLayer layer;
    for (std::int32_t i = 0; i < graph.num_rows(); ++i)
        if (distance[i] > 0 && distance[i] <= num_layers) {
            layer.rows.push_back(i);
            layer.levels.push_back(static_cast<std::uint8_t>(distance[i]));
        }
    return layer;
}

TEST(GhostLayer, TakesTheRingsOfAStripByHand)
{
    const auto layers = ghost_layers(cell_graph(strip(7)), {3, {0, 0, 1, 1, 1, 0, 2}}, 2);

    EXPECT_EQ(layers[0].rows, (std::vector<std::int32_t>{2, 3, 4, 6}));
    EXPECT_EQ(layers[0].levels, (std::vector<std::uint8_t>{1, 2, 1, 1}));
    EXPECT_EQ(layers[1].rows, (std::vector<std::int32_t>{0, 1, 5, 6}));
    EXPECT_EQ(layers[1].levels, (std::vector<std::uint8_t>{2, 1, 1, 2}));
    EXPECT_EQ(layers[2].rows, (std::vector<std::int32_t>{4, 5}));
    EXPECT_EQ(layers[2].levels, (std::vector<std::uint8_t>{2, 1}));
}

TEST(GhostLayer, EqualsABreadthFirstSearchOnEveryMesh)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t num_parts : {1, 2, 3, 4, 5, 7, 8})
            for (const auto& [kind, partition] : four_partitions(mesh, num_parts))
                for (const std::int32_t num_layers : {0, 1, 2, 4, 255}) {
                    SCOPED_TRACE(name + ", " + std::to_string(num_parts) + " parts, " + kind);
                    const auto graph = mesh_graph(mesh);

                    const auto layers = ghost_layers(graph, partition, num_layers);

                    ASSERT_EQ(layers.size(), static_cast<std::size_t>(num_parts));
                    for (std::int32_t part = 0; part < num_parts; ++part) {
                        const auto expected = reference_layer(graph, partition, part, num_layers);
                        ASSERT_EQ(layers[part].rows, expected.rows) << "part " << part;
                        ASSERT_EQ(layers[part].levels, expected.levels) << "part " << part;
                        const auto alone = ghost_layer(graph, partition, part, num_layers);
                        ASSERT_EQ(alone.rows, expected.rows) << "part " << part;
                        ASSERT_EQ(alone.levels, expected.levels) << "part " << part;
                    }
                }
}

TEST(GhostLayer, FollowsEdgesOneWayInADirectedGraph)
{
    const Csr graph{{0, 1, 1}, {1}};  // 0 sees 1, 1 sees nothing

    const auto layers = ghost_layers(graph, {2, {0, 1}}, 1);

    EXPECT_EQ(layers[0].rows, (std::vector<std::int32_t>{1}));
    EXPECT_TRUE(layers[1].rows.empty());
}

TEST(GhostLayer, RefusesImpossibleArguments)
{
    const Partition partition{2, {0, 1}};
    EXPECT_TRUE(
        throws_with<InvalidInput>("num_layers is -1", [&] { ghost_layers(Csr{{0, 0, 0}, {}}, partition, -1); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("num_layers is 256", [&] { ghost_layers(Csr{{0, 0, 0}, {}}, partition, 256); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("the partition has 2 rows, the graph 0", [&] { ghost_layers(Csr{}, partition, 1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("part is 2, expected 0 to 1",
                                          [&] { ghost_layer(Csr{{0, 0, 0}, {}}, partition, 2, 1); }));
}

}  // namespace
}  // namespace meshard
