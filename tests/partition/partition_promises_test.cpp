// SPDX-License-Identifier: Apache-2.0
// What a cut promises whatever the mesh, the method and the balance, tried on random ones.
#include "partition/cut_measures.h"
#include "partition/geometric_partitioner.h"
#include "partition/mesh_graph.h"
#include "partition/metis_partitioner.h"
#include "partition/partitioner.h"
#include "partition/scotch_partitioner.h"
#include "partition/subdomain.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace meshard {
namespace {

using Random = std::mt19937;

// A box, a ball or a cloud, some with holes.
Mesh random_mesh(Random& random)
{
    const auto n = static_cast<std::int32_t>(4 + random() % 6);
    const auto kind = random() % 6;
    if (kind == 0) return random_cloud(40 * n, static_cast<std::uint32_t>(random()));
    if (kind == 1) return sphere(3 * n);
    const auto whole = kind == 2 ? cube(n) : kind == 3 ? polyhedral_cube(n) : tet_cube(n);
    std::vector<std::int32_t> cells, points(whole.num_points());
    const auto kept = kind == 5 ? 8u : 10u;
    for (std::int32_t cell = 0; cell < whole.num_cells(); ++cell)
        if (random() % 10 < kept) cells.push_back(cell);
    for (std::size_t p = 0; p < points.size(); ++p) points[p] = static_cast<std::int32_t>(p);
    return extract_mesh(whole, cells, points);
}

// Weights, capacities and imbalance as people might ask for them.
struct RandomBalance {
    std::vector<std::int32_t> weights;
    std::vector<double> capacities;
    std::int32_t num_weights = 1;
    double imbalance = 1.03;

    RandomBalance(Random& random, std::int64_t num_rows, std::int32_t num_parts)
    {
        imbalance = std::vector<double>{1.03, 1.03, 1.1, 1.3}[random() % 4];
        if (random() % 2 == 0) {
            num_weights = 1 + static_cast<std::int32_t>(random() % 2);
            for (std::int64_t i = 0; i < num_rows * num_weights; ++i)
                weights.push_back(static_cast<std::int32_t>(1 + random() % 4));
        }
        if (random() % 3 == 0)
            for (std::int32_t part = 0; part < num_parts; ++part)
                capacities.push_back(static_cast<double>(1 + random() % 3));
    }

    BalanceTarget target() const { return {imbalance, num_weights, weights, capacities}; }
};

std::string random_method(Random& random)
{
    std::vector<std::string> names;
    for (const auto& method : partition_methods())
        if (method.name != "scotch" || has_scotch()) names.push_back(method.name);
    return names[random() % names.size()];
}

// Pieces of a part, by a walk of its own.
std::int32_t count_pieces(const Partition& partition, const Csr& graph, std::int32_t part)
{
    std::vector<bool> seen(partition.num_rows(), false);
    std::int32_t pieces = 0;
    for (std::int32_t start = 0; start < partition.num_rows(); ++start) {
        if (seen[start] || partition.owners[start] != part) continue;
        ++pieces;
        std::vector<std::int32_t> stack{start};
        seen[start] = true;
        while (!stack.empty()) {
            const auto row = stack.back();
            stack.pop_back();
            for (const auto j : graph.row(row))
                if (!seen[j] && partition.owners[j] == part) {
                    seen[j] = true;
                    stack.push_back(j);
                }
        }
    }
    return pieces;
}

TEST(PartitionPromises, RefinementIsNeverWorseThanItsStartWhateverTheBalance)
{
    Random random(11);
    for (int i = 0; i < 60; ++i) {
        SCOPED_TRACE(i);
        const auto graph = mesh_graph(random_mesh(random));
        const auto num_parts = static_cast<std::int32_t>(2 + random() % 20);
        const RandomBalance random_balance(random, graph.num_rows(), num_parts);
        const auto balance = random_balance.target();
        const auto start = partition_with_metis(graph, {.num_parts = num_parts,
                                                        .imbalance = balance.imbalance,
                                                        .num_weights = balance.num_weights,
                                                        .row_weights = balance.row_weights,
                                                        .capacities = balance.capacities});
        const auto most = largest_weights_allowed(graph.num_rows(), num_parts, balance);
        const RefinementOptions options{.balance = balance,
                                        .effort = random() % 3 == 0 ? RefinementEffort::Thorough : RefinementEffort::Fast,
                                        .ghost_share = 0.1 * static_cast<double>(1 + random() % 6),
                                        .seed = random() % 100};
        auto refined = start, again = start;

        refine_partition(refined, graph, options);
        refine_partition(again, graph, options);

        EXPECT_TRUE(measure_cut(refined, graph).is_no_worse_than(measure_cut(start, graph)));
        EXPECT_LE(overload(refined, balance, most), overload(start, balance, most));
        EXPECT_GE(std::ranges::min(part_sizes(refined)), graph.num_rows() >= num_parts ? 1 : 0);
        EXPECT_EQ(refined, again);
    }
}

TEST(PartitionPromises, CutsAreNeverWorseThanMetis)
{
    Random random(12);
    for (int i = 0; i < 24; ++i) {
        SCOPED_TRACE(i);
        const auto mesh = random_mesh(random);
        const auto graph = mesh_graph(mesh);
        const auto centers = row_centers(mesh);
        const auto num_parts = static_cast<std::int32_t>(2 + random() % 12);
        const RandomBalance random_balance(random, graph.num_rows(), num_parts);
        const auto balance = random_balance.target();
        const auto seed = random() % 100;
        const auto metis = partition_with_metis(graph, {.num_parts = num_parts,
                                                        .imbalance = balance.imbalance,
                                                        .seed = static_cast<std::int32_t>(seed),
                                                        .num_weights = balance.num_weights,
                                                        .row_weights = balance.row_weights,
                                                        .capacities = balance.capacities});
        for (const auto effort : {RefinementEffort::Fast, RefinementEffort::Thorough}) {
            const PartitionProblem problem{&graph, centers, num_parts, balance, seed};
            const auto cut = cut_rows(problem, {.effort = effort}).partition;

            EXPECT_TRUE(measure_cut(cut, graph).is_no_worse_than(measure_cut(metis, graph)));
            const auto most = largest_weights_allowed(graph.num_rows(), num_parts, balance);
            EXPECT_EQ(overload(cut, balance, most), 0);
            EXPECT_EQ(cut, cut_rows(problem, {.effort = effort}).partition);
        }
    }
}

TEST(PartitionPromises, NoPartIsAboveTheBoundOrEmptyWhateverTheMethod)
{
    Random random(14);
    for (int i = 0; i < 80; ++i) {
        SCOPED_TRACE(i);
        const auto mesh = random_mesh(random);
        const auto graph = mesh_graph(mesh);
        const auto centers = row_centers(mesh);
        const auto parts_per_node = static_cast<std::int32_t>(1 + random() % 4);
        const auto num_parts = static_cast<std::int32_t>(2 + random() % 5) * parts_per_node;
        const RandomBalance random_balance(random, graph.num_rows(), num_parts);
        const PartitionProblem problem{&graph, centers, num_parts, random_balance.target(), random() % 100};
        CutOptions options{.method = random_method(random), .refine = random() % 2 == 0};
        if (random() % 3 == 0) options.levels = {num_parts / parts_per_node, parts_per_node};
        SCOPED_TRACE(options.method + " in " + std::to_string(num_parts) + " of " + std::to_string(graph.num_rows()));

        const auto cut = cut_rows(problem, options).partition;

        const auto most = largest_weights_allowed(graph.num_rows(), num_parts, problem.balance);
        EXPECT_EQ(overload(cut, problem.balance, most), 0);
        EXPECT_GE(std::ranges::min(part_sizes(cut)), 1);
        EXPECT_EQ(cut, cut_rows(problem, options).partition);
    }
}

TEST(PartitionPromises, ContiguousPartsAreWholeOnConnectedMeshes)
{
    Random random(13);
    for (int i = 0; i < 100; ++i) {
        SCOPED_TRACE(i);
        const auto n = static_cast<std::int32_t>(5 + random() % 5);
        const auto mesh = i % 3 == 0 ? tet_cube(n) : i % 3 == 1 ? cube(n) : sphere(2 * n);
        const auto graph = mesh_graph(mesh);
        const auto centers = row_centers(mesh);
        // Down to some ten rows a part.
        const auto num_parts = static_cast<std::int32_t>(2 + random() % (graph.num_rows() / 12));
        RandomBalance random_balance(random, graph.num_rows(), num_parts);
        // Parts of a dozen rows that weigh differently cannot always be had within 3 %.
        while (!random_balance.weights.empty() && graph.num_rows() < 30 * random_balance.num_weights * num_parts)
            random_balance = RandomBalance(random, graph.num_rows(), num_parts);
        const auto balance = random_balance.target();
        const PartitionProblem problem{&graph, centers, num_parts, balance, random() % 100};
        const bool is_random = random() % 6 == 0;
        const CutOptions options{.method = random_method(random), .contiguous = true};
        CutResult cut;
        if (is_random) {
            Partition start{num_parts, std::vector<std::int32_t>(graph.num_rows())};
            for (auto& owner : start.owners) owner = static_cast<std::int32_t>(random() % num_parts);
            cut = improve_cut(std::move(start), problem, options);
        } else {
            cut = cut_rows(problem, options);
        }

        EXPECT_TRUE(cut.in_pieces.empty()) << options.method << " in " << num_parts << " of " << graph.num_rows();
        for (std::int32_t part = 0; part < num_parts; ++part) EXPECT_EQ(count_pieces(cut.partition, graph, part), 1);
        EXPECT_EQ(overload(cut.partition, balance, largest_weights_allowed(graph.num_rows(), num_parts, balance)), 0);
    }
}

} // namespace
} // namespace meshard
