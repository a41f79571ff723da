// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/balance.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace meshard {
namespace {

TEST(LargestPartAllowed, NeverGoesBelowTheMeanRoundedUp)
{
    EXPECT_EQ(largest_part_allowed(100, 3, 1.0), 34);
    EXPECT_EQ(largest_part_allowed(100, 10, 1.03), 10);
    EXPECT_EQ(largest_part_allowed(1000, 10, 1.03), 103);
    EXPECT_EQ(largest_part_allowed(3, 5, 1.03), 1);
    EXPECT_EQ(largest_part_allowed(0, 5, 1.03), 0);
    EXPECT_EQ(largest_part_allowed(10, 2, 1e30), 10);
}

TEST(BreadthFirstBlocks, AreEqualWithinOneRow)
{
    const auto graph = cell_graph(cube(4));
    for (const std::int32_t num_parts : {1, 3, 10, 64}) {
        const auto sizes = part_sizes({num_parts, breadth_first_blocks(graph, num_parts)});
        EXPECT_LE(std::ranges::max(sizes) - std::ranges::min(sizes), 1);
    }
    EXPECT_EQ(breadth_first_blocks(cell_graph(strip(3)), 5), (std::vector<std::int32_t>{0, 1, 2}));
}

TEST(BalanceParts, LeavesABalancedPartitionAlone)
{
    const Partition before{2, {0, 1, 0, 1}};
    auto partition = before;

    balance_parts(partition, cell_graph(strip(4)), 1.0);

    EXPECT_EQ(partition, before);
}

TEST(BalanceParts, MovesBoundaryRowsFirst)
{
    Partition partition{2, {0, 0, 0, 0, 0, 0, 1, 1}};

    balance_parts(partition, cell_graph(strip(8)), 1.0);

    EXPECT_EQ(partition.owners, (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(BalanceParts, PassesRowsAlongAChainOfFullParts)
{
    Partition partition{3, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2}};

    balance_parts(partition, cell_graph(strip(12)), 1.0);

    EXPECT_EQ(partition.owners, (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST(BalanceParts, CrossesToAnIslandWhenItMust)
{
    const auto graph = cell_graph(islands(2, 6));
    Partition partition{2, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}};
    Partition apart{3, {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1}};

    balance_parts(partition, graph, 1.0);
    balance_parts(apart, graph, 1.0);

    EXPECT_EQ(part_sizes(partition), (std::vector<std::int64_t>{6, 6}));
    EXPECT_EQ(part_sizes(apart), (std::vector<std::int64_t>{4, 4, 4}));
}

TEST(BalanceParts, FillsEmptyPartsFromTheLargest)
{
    const auto graph = cell_graph(cube(4));
    Partition partition{9, std::vector<std::int32_t>(64, 4)};

    balance_parts(partition, graph, 1.03);

    for (const auto size : part_sizes(partition)) {
        EXPECT_GE(size, 1);
        EXPECT_LE(size, 8);
    }
}

TEST(BalanceParts, LeavesPartsEmptyWhenThereAreTooFewRows)
{
    Partition partition{5, {0, 0, 3}};

    balance_parts(partition, cell_graph(strip(3)), 1.03);

    const auto sizes = part_sizes(partition);
    EXPECT_EQ(std::ranges::max(sizes), 1);
}

}  // namespace
}  // namespace meshard
