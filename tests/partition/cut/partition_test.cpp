// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/partition.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/random_numbers.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <map>
#include <set>

namespace meshard {
namespace {

// The example of IndexMap: seven cells in a row.
const Partition row_of_seven{3, {0, 0, 1, 1, 1, 0, 2}};

TEST(Partition, CountsItsParts)
{
    EXPECT_EQ(part_sizes(row_of_seven), (std::vector<std::int64_t>{3, 3, 1}));
    EXPECT_DOUBLE_EQ(imbalance(row_of_seven), 9.0 / 7.0);
    EXPECT_EQ(rows_by_part(row_of_seven), (Csr{{0, 3, 6, 7}, {0, 1, 5, 2, 3, 4, 6}}));
    EXPECT_EQ(to_string(row_of_seven), "Partition: 7 rows in 3 parts of 1 to 3, imbalance 1.286");
}

TEST(Partition, MeasuresTheRowOfSevenByHand)
{
    const auto graph = cell_graph(strip(7));

    const auto quality = measure_quality(row_of_seven, graph);

    EXPECT_EQ(edge_cut(row_of_seven, graph), 3);
    EXPECT_EQ(quality.edge_cut, 3);
    EXPECT_EQ(communication_volume(row_of_seven, graph), 6);
    EXPECT_EQ(quality.communication_volume, 6);
    EXPECT_EQ(quality.parts[0].num_owned, 3);
    EXPECT_EQ(quality.parts[0].num_ghosts, 3);
    EXPECT_EQ(quality.parts[0].cut_edges, 3);
    EXPECT_EQ(quality.parts[0].neighbors, (std::vector<std::int32_t>{1, 2}));
    EXPECT_EQ(quality.parts[0].num_components, 2);
    EXPECT_EQ(quality.parts[1].neighbors, (std::vector<std::int32_t>{0}));
    EXPECT_EQ(quality.parts[1].num_components, 1);
    EXPECT_EQ(quality.parts[2].num_ghosts, 1);
}

TEST(Partition, CountsAGhostOnceHoweverManyEdgesLeadToIt)
{
    // Cells 0 1 / 2 3 of a square: 0 alone, so that 1 and 2 see it once each, and it sees two.
    Csr graph{{0, 2, 4, 6, 8}, {1, 2, 0, 3, 0, 3, 1, 2}};
    const Partition partition{2, {0, 1, 1, 1}};

    const auto quality = measure_quality(partition, graph);

    EXPECT_EQ(quality.edge_cut, 2);
    EXPECT_EQ(quality.parts[0].num_ghosts, 2);
    EXPECT_EQ(quality.parts[1].num_ghosts, 1);
    EXPECT_EQ(quality.parts[1].cut_edges, 2);
}

TEST(Partition, MeasuresRandomPartsAsASearchFromRowToRowDoes)
{
    RandomNumbers random(7);
    for (const auto& [name, mesh] : sample_meshes()) {
        const auto graph = mesh_graph(mesh);
        Partition partition{4, {}};
        for (std::int64_t i = 0; i < graph.num_rows(); ++i)
            partition.owners.push_back(static_cast<std::int32_t>(random.below(3)));

        const auto quality = measure_quality(partition, graph);

        for (std::int32_t part = 0; part < partition.num_parts; ++part) {
            std::set<std::int32_t> ghosts, reached;
            std::int64_t num_pieces = 0;
            std::map<std::int32_t, std::int64_t> edges_to;
            for (std::int32_t start = 0; start < graph.num_rows(); ++start) {
                if (partition.owners[start] != part || reached.contains(start)) continue;
                ++num_pieces;
                std::vector<std::int32_t> stack{start};
                while (!stack.empty()) {
                    const auto row = stack.back();
                    stack.pop_back();
                    if (!reached.insert(row).second) continue;
                    for (const auto other : graph.row(row)) {
                        if (partition.owners[other] == part) {
                            stack.push_back(other);
                        } else {
                            ghosts.insert(other);
                            ++edges_to[partition.owners[other]];
                        }
                    }
                }
            }
            const auto& found = quality.parts[part];
            EXPECT_EQ(found.num_components, num_pieces) << name;
            EXPECT_EQ(found.num_owned, static_cast<std::int64_t>(reached.size())) << name;
            EXPECT_EQ(found.num_ghosts, static_cast<std::int64_t>(ghosts.size())) << name;
            ASSERT_EQ(found.neighbors.size(), edges_to.size()) << name;
            for (std::size_t k = 0; k < found.neighbors.size(); ++k)
                EXPECT_EQ(found.neighbor_edges[k], edges_to.at(found.neighbors[k])) << name;
        }
    }
}

TEST(Partition, MayHaveEmptyPartsAndNoRows)
{
    const Partition empty{4, {}};
    EXPECT_DOUBLE_EQ(imbalance(empty), 1.0);
    EXPECT_EQ(edge_cut(empty, Csr{}), 0);
    const auto quality = measure_quality({3, {2, 2}}, Csr{{0, 1, 2}, {1, 0}});
    EXPECT_EQ(quality.parts[0].num_components, 0);
    EXPECT_EQ(quality.parts[2].num_components, 1);
    EXPECT_DOUBLE_EQ(quality.imbalance, 3.0);
}

TEST(Partition, RefusesOwnersOutside)
{
    EXPECT_THROW(rows_by_part({3, {0, 9, 1}}), InvalidInput);
    EXPECT_THROW(rows_by_part({0, {}}), InvalidInput);
    EXPECT_TRUE(throws_with<InvalidInput>("num_parts is 0", [] { Partition{0, {}}.validate(); }));
    EXPECT_TRUE(
        throws_with<InvalidInput>("row 1 has owner 2, expected 0 to 1", [] { Partition{2, {0, 2}}.validate(); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 0 has owner -1", [] { part_sizes({2, {-1}}); }));
}

TEST(Partition, RefusesAGraphOfAnotherSize)
{
    EXPECT_TRUE(throws_with<InvalidInput>("measure_quality: the partition has 7 rows, the graph 0",
                                          [] { measure_quality(row_of_seven, Csr{}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("edge_cut", [] { edge_cut(row_of_seven, Csr{}); }));
}

}  // namespace
}  // namespace meshard
