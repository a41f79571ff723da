// SPDX-License-Identifier: Apache-2.0
// What a cut promises whatever the mesh, the method and the balance, tried on random ones.
#include "partition/cut/cut_measures.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/cut/scotch_partitioner.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

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

struct RandomCase {
    Mesh mesh;
    Csr graph;
    std::vector<float> centroids;
    std::int32_t num_parts;
    RandomBalance balance;
    std::uint64_t seed;

    RandomCase(Random& random, Mesh some_mesh, std::int32_t parts)
        : mesh(std::move(some_mesh)), graph(mesh_graph(mesh)), centroids(row_centroids(mesh)), num_parts(parts),
          balance(random, graph.num_rows(), num_parts), seed(random() % 100)
    {
    }

    PartitionProblem problem() const { return {&graph, centroids, num_parts, balance.target(), seed}; }
    Partition by_metis() const { return partition_method("metis").partition(problem()); }
    std::int64_t overload_of(const Partition& partition) const
    {
        const auto target = balance.target();
        return overload(partition, target, largest_weights_allowed(graph.num_rows(), num_parts, target));
    }
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
        const RandomCase some(random, random_mesh(random), static_cast<std::int32_t>(2 + random() % 20));
        const auto start = some.by_metis();
        const RefinementOptions options{.balance = some.balance.target(),
                                        .effort =
                                            random() % 3 == 0 ? RefinementEffort::Thorough : RefinementEffort::Fast,
                                        .ghost_share = 0.1 * static_cast<double>(1 + random() % 6),
                                        .seed = some.seed};
        auto refined = start, again = start;

        refine_partition(refined, some.graph, options);
        refine_partition(again, some.graph, options);

        EXPECT_TRUE(measure_cut(refined, some.graph).is_no_worse_than(measure_cut(start, some.graph)));
        EXPECT_LE(some.overload_of(refined), some.overload_of(start));
        EXPECT_GE(std::ranges::min(part_sizes(refined)), some.graph.num_rows() >= some.num_parts ? 1 : 0);
        EXPECT_EQ(refined, again);
    }
}

TEST(PartitionPromises, CutsAreNeverWorseThanMetis)
{
    Random random(12);
    for (int i = 0; i < 24; ++i) {
        SCOPED_TRACE(i);
        const RandomCase some(random, random_mesh(random), static_cast<std::int32_t>(2 + random() % 12));
        const auto metis = measure_cut(some.by_metis(), some.graph);
        for (const auto effort : {RefinementEffort::Fast, RefinementEffort::Thorough})
            for (const std::string method : {"metis", "auto"}) {
                const CutOptions options{.method = method, .effort = effort};

                const auto cut = cut_rows(some.problem(), options).partition;

                EXPECT_TRUE(measure_cut(cut, some.graph).is_no_worse_than(metis)) << method;
                EXPECT_EQ(some.overload_of(cut), 0);
                EXPECT_EQ(cut, cut_rows(some.problem(), options).partition);
            }
    }
}

TEST(PartitionPromises, NoPartIsAboveTheBoundOrEmptyWhateverTheMethod)
{
    Random random(14);
    for (int i = 0; i < 80; ++i) {
        SCOPED_TRACE(i);
        const auto parts_per_node = static_cast<std::int32_t>(1 + random() % 4);
        const auto num_nodes = static_cast<std::int32_t>(2 + random() % 5);
        const RandomCase some(random, random_mesh(random), num_nodes * parts_per_node);
        CutOptions options{.method = random_method(random), .refine = random() % 2 == 0};
        if (random() % 3 == 0) options.levels = {num_nodes, parts_per_node};
        SCOPED_TRACE(options.method);

        const auto cut = cut_rows(some.problem(), options).partition;

        EXPECT_EQ(some.overload_of(cut), 0);
        EXPECT_GE(std::ranges::min(part_sizes(cut)), 1);
        EXPECT_EQ(cut, cut_rows(some.problem(), options).partition);
    }
}

TEST(PartitionPromises, ContiguousPartsAreWholeOnConnectedMeshes)
{
    Random random(13);
    for (int i = 0; i < 100; ++i) {
        SCOPED_TRACE(i);
        const auto n = static_cast<std::int32_t>(5 + random() % 5);
        const auto mesh = i % 3 == 0 ? tet_cube(n) : i % 3 == 1 ? cube(n) : sphere(2 * n);
        // Down to some ten rows a part; more where rows weigh differently, or 3 % could not always be had.
        const auto most_parts = static_cast<std::uint32_t>(mesh.num_cells() / 12);
        RandomCase some(random, mesh, static_cast<std::int32_t>(2 + random() % most_parts));
        const auto is_possible = [&] {
            return some.balance.weights.empty() ||
                   some.graph.num_rows() >= 30 * some.balance.num_weights * some.num_parts;
        };
        while (!is_possible()) some.balance = RandomBalance(random, some.graph.num_rows(), some.num_parts);
        const CutOptions options{.method = random_method(random), .contiguous = true};
        CutResult cut;
        if (random() % 6 == 0) {
            Partition start{some.num_parts, std::vector<std::int32_t>(some.graph.num_rows())};
            for (auto& owner : start.owners) owner = static_cast<std::int32_t>(random() % some.num_parts);
            cut = improve_cut(std::move(start), some.problem(), options);
        } else {
            cut = cut_rows(some.problem(), options);
        }

        EXPECT_TRUE(cut.in_pieces.empty()) << options.method << " in " << some.num_parts;
        for (std::int32_t part = 0; part < some.num_parts; ++part)
            EXPECT_EQ(count_pieces(cut.partition, some.graph, part), 1);
        EXPECT_EQ(some.overload_of(cut.partition), 0);
    }
}

}  // namespace
}  // namespace meshard
