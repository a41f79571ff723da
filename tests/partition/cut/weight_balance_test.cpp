// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/cut_measures.h"
#include "partition/cut/weight_balance.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <random>

namespace meshard {
namespace {

TEST(BalanceWeights, ExchangesRowsOfPartsThatAreFullOfDifferentWeights)
{
    const auto graph = cell_graph(strip(4));
    const std::vector<std::int32_t> weights{4, 0, 4, 0, 0, 4, 0, 4};  // two a row
    const BalanceTarget balance{1.0, 2, weights};
    Partition partition{2, {0, 0, 1, 1}};  // no single move helps

    balance_weights(partition, graph, balance);

    EXPECT_EQ(part_weights(partition, balance), (std::vector<std::int64_t>{4, 4, 4, 4}));
}

TEST(BalanceWeights, ReachesTheBoundFromWhereverItStarts)
{
    std::mt19937 random(3);
    const auto graph = cell_graph(tet_cube(5));
    for (int i = 0; i < 20; ++i) {
        std::vector<std::int32_t> weights(2 * graph.num_rows());
        for (auto& weight : weights) weight = static_cast<std::int32_t>(random() % 5);
        const BalanceTarget balance{1.03, 2, weights};
        Partition partition{9, std::vector<std::int32_t>(graph.num_rows(), 0)};
        if (i % 2 == 0)
            for (auto& owner : partition.owners) owner = static_cast<std::int32_t>(random() % 9);

        balance_weights(partition, graph, balance);

        EXPECT_EQ(overload(partition, balance, largest_weights_allowed(graph.num_rows(), 9, balance)), 0);
        EXPECT_FALSE(has_empty_part(partition));
    }
}

TEST(BalanceWeights, PassesRowsAlongAChainOfFullPartsThatStayWhole)
{
    const auto graph = cell_graph(strip(12));
    Partition partition{3, {0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}};  // none may have more than four

    balance_weights_of_whole_parts(partition, graph, {.imbalance = 1.0});

    EXPECT_EQ(partition.owners, (std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));
}

TEST(BalanceWeights, LeavesPartsWholeThatItCannotBalance)
{
    // A star of arms: the middle cannot leave its part, and nothing else is next to another part.
    Csr graph;
    const std::vector<std::vector<std::int32_t>> rows{{1, 3, 5}, {0, 2}, {1}, {0, 4}, {3}, {0, 6}, {5}};
    for (const auto& row : rows) graph.push_row(row);
    Partition partition{2, {0, 0, 0, 0, 0, 0, 1}};

    balance_weights_of_whole_parts(partition, graph, {.imbalance = 1.0});

    EXPECT_TRUE(parts_in_pieces(partition, graph).empty());
    EXPECT_EQ(part_sizes(partition), (std::vector<std::int64_t>{5, 2}));
}

TEST(BalanceWeights, RefusesAPartitionOfAnotherGraph)
{
    Partition partition{2, {0, 1}};
    EXPECT_TRUE(throws_with<InvalidInput>("has 2 rows, the graph 4",
                                          [&] { balance_weights(partition, cell_graph(strip(4)), {}); }));
}

}  // namespace
}  // namespace meshard
