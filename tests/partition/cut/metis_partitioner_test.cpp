// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/balance.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <algorithm>
#include <random>
#include <set>

namespace meshard {
namespace {

void expect_balanced(const Partition& partition, std::int64_t num_rows, std::int32_t num_parts, double imbalance)
{
    ASSERT_NO_THROW(partition.validate());
    ASSERT_EQ(partition.num_rows(), num_rows);
    ASSERT_EQ(partition.num_parts, num_parts);
    for (const auto size : part_sizes(partition)) {
        EXPECT_LE(size, largest_part_allowed(num_rows, num_parts, imbalance));
        EXPECT_GE(size, num_rows >= num_parts ? 1 : 0);
    }
}

TEST(MetisPartitioner, KeepsTheBoundOnEveryMeshAndNumberOfParts)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const std::int32_t num_parts : {1, 2, 3, 5, 7, 16, 64})
            for (const double imbalance : {1.0, 1.03, 1.5}) {
                SCOPED_TRACE(name + " in " + std::to_string(num_parts) + " parts, imbalance " +
                             std::to_string(imbalance));
                const auto partition =
                    partition_with_metis(mesh_graph(mesh), {.num_parts = num_parts, .imbalance = imbalance});
                expect_balanced(partition, mesh.num_rows(), num_parts, imbalance);
            }
}

TEST(MetisPartitioner, KeepsTheBoundOnLargerMeshes)
{
    for (const auto& graph : {cell_graph(cube(12)), cell_graph(sphere(20)), cell_graph(tet_cube(6)),
                              mesh_graph(random_cloud(2000, 1)), cell_graph(islands(40, 25))})
        for (const std::int32_t num_parts : {2, 7, 31, 64, 100})
            for (const double imbalance : {1.0, 1.001, 1.03}) {
                SCOPED_TRACE(to_string(graph) + " in " + std::to_string(num_parts) + " parts, imbalance " +
                             std::to_string(imbalance));
                const auto partition = partition_with_metis(graph, {.num_parts = num_parts, .imbalance = imbalance});
                expect_balanced(partition, graph.num_rows(), num_parts, imbalance);
            }
}

TEST(MetisPartitioner, CutsLittle)
{
    const auto graph = cell_graph(cube(12));

    const auto quality = measure_quality(partition_with_metis(graph, {.num_parts = 8}), graph);

    EXPECT_LE(quality.edge_cut, 3 * 144 * 3 / 2);  // eight cubes cut 3 x 144 faces
    for (const auto& part : quality.parts) EXPECT_EQ(part.num_components, 1);
}

TEST(MetisPartitioner, GivesEachRowAPartWhenThereAreMoreParts)
{
    const auto partition = partition_with_metis(cell_graph(strip(3)), {.num_parts = 5});

    EXPECT_EQ(std::set(partition.owners.begin(), partition.owners.end()), (std::set{0, 1, 2}));
    EXPECT_EQ(partition.num_parts, 5);
}

TEST(MetisPartitioner, TakesNoRowsOnePartAndNoEdges)
{
    EXPECT_EQ(partition_with_metis(Csr{}, {.num_parts = 3}), (Partition{3, {}}));
    EXPECT_EQ(partition_with_metis(cell_graph(strip(4)), {.num_parts = 1}), (Partition{1, {0, 0, 0, 0}}));
    Csr isolated;
    for (int i = 0; i < 1000; ++i) isolated.push_row({});
    const auto sizes = part_sizes(partition_with_metis(isolated, {.num_parts = 8, .imbalance = 1.0}));
    EXPECT_EQ(sizes, std::vector<std::int64_t>(8, 125));
}

TEST(MetisPartitioner, DependsOnTheSeedAndNothingElse)
{
    const auto graph = cell_graph(cube(10));
    const auto cut_with = [&](std::int32_t seed) {
        return partition_with_metis(graph, {.num_parts = 6, .seed = seed});
    };

    const auto first = cut_with(1);
    const auto other = cut_with(2);

    EXPECT_EQ(cut_with(1), first);
    EXPECT_NE(other, first);
}

TEST(MetisPartitioner, SaysNothingOnStandardOutput)
{
    testing::internal::CaptureStdout();
    for (const std::int32_t num_parts : {2, 9, 40, 83, 200}) {
        partition_with_metis(cell_graph(islands(100, 10)), {.num_parts = num_parts});
        partition_with_metis(cell_graph(cube(10)), {.num_parts = num_parts});
        partition_with_metis(cell_graph(strip(1000)), {.num_parts = num_parts});
    }
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(MetisPartitioner, RefusesImpossibleArguments)
{
    const auto graph = cell_graph(strip(2));
    EXPECT_TRUE(throws_with<InvalidInput>("num_parts is 0", [&] { partition_with_metis(graph, {.num_parts = 0}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("imbalance is 0.9",
                                          [&] { partition_with_metis(graph, {.num_parts = 2, .imbalance = 0.9}); }));
    EXPECT_TRUE(throws_with<InvalidInput>(
        "imbalance is nan", [&] { partition_with_metis(graph, {.num_parts = 2, .imbalance = std::nan("")}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("not symmetric",
                                          [] { partition_with_metis(Csr{{0, 1, 1}, {1}}, {.num_parts = 2}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 0 of the graph is its own neighbour",
                                          [] { partition_with_metis(Csr{{0, 1, 1}, {0}}, {.num_parts = 2}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("row 0 holds index 5",
                                          [] { partition_with_metis(Csr{{0, 1, 1}, {5}}, {.num_parts = 2}); }));
}

TEST(PartitionWithMetis, CountsIn32Bits)
{
    constexpr std::int64_t most = 2147483647;  // beyond, `cut_rows` goes to Scotch
    EXPECT_TRUE(fits_metis(most, most));
    EXPECT_FALSE(fits_metis(most + 1, 0));
    EXPECT_FALSE(fits_metis(1000, most + 1));
}

TEST(PartitionWithMetis, KnowsThatEdgesWeigh)
{
    // A ring whose cheapest cut is known: the two light edges.
    Csr ring;
    std::vector<std::int32_t> weights;
    const auto weight = [](std::int32_t first, std::int32_t second) {
        const auto low = std::min(first, second), high = std::max(first, second);
        return (low == 0 && high == 1) || (low == 40 && high == 41) ? 1 : 50;
    };
    constexpr std::int32_t n = 80;
    for (std::int32_t i = 0; i < n; ++i) {
        const std::vector<std::int32_t> row{(i + n - 1) % n, (i + 1) % n};
        ring.push_row(row);
        for (const auto j : row) weights.push_back(weight(i, j));
    }

    const auto partition = partition_with_metis(ring, {.num_parts = 2, .edge_weights = weights});

    EXPECT_NE(partition.owners[0], partition.owners[1]);
    EXPECT_NE(partition.owners[40], partition.owners[41]);
    EXPECT_EQ(edge_cut(partition, ring), 2);
    weights.pop_back();
    EXPECT_TRUE(throws_with<InvalidInput>(
        "159 edge weights", [&] { partition_with_metis(ring, {.num_parts = 2, .edge_weights = weights}); }));
}

}  // namespace
}  // namespace meshard
