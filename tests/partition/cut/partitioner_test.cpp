// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/balance.h"
#include "partition/cut/cut_measures.h"
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/cut/partitioner.h"
#include "partition/cut/scotch_partitioner.h"
#include "partition/error.h"
#include "partition/ghosts/subdomain.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace meshard {
namespace {

CutResult cut(const Mesh& mesh, std::int32_t num_parts, const CutOptions& options, const BalanceTarget& balance = {},
              std::uint64_t seed = 0)
{
    const auto graph = mesh_graph(mesh);
    const auto centroids = row_centroids(mesh, first_point(mesh));
    return cut_rows({.graph = &graph, .centroids = centroids, .num_parts = num_parts, .balance = balance, .seed = seed},
                    options);
}

std::vector<std::string> methods_here()
{
    std::vector<std::string> names;
    for (const auto& method : partition_methods())
        if (method.name != "scotch" || has_scotch()) names.push_back(method.name);
    return names;
}

TEST(CutRows, AreTheSameFarFromTheOrigin)
{
    const Mesh mesh = cube(8);
    Mesh moved = mesh;
    for (auto& value : moved.points.mutable_values<double>()) value += 1e8;
    for (const char* method : {"rcb", "hilbert"})
        EXPECT_EQ(cut(moved, 5, {.method = method}).partition.owners, cut(mesh, 5, {.method = method}).partition.owners)
            << method;
}

TEST(CutRows, KeepsEveryPromiseForEveryMethodMeshAndNumberOfParts)
{
    for (const auto& [name, mesh] : sample_meshes())
        for (const auto& method : methods_here())
            for (const std::int32_t num_parts : {1, 2, 3, 7, 40}) {
                SCOPED_TRACE(name + " by " + method + " in " + std::to_string(num_parts));
                const auto result = cut(mesh, num_parts, {.method = method});

                ASSERT_NO_THROW(result.partition.validate());
                ASSERT_EQ(result.partition.num_rows(), mesh.num_rows());
                ASSERT_EQ(result.partition.num_parts, num_parts);
                for (const auto size : part_sizes(result.partition)) {
                    EXPECT_LE(size, largest_part_allowed(mesh.num_rows(), num_parts, 1.03));
                    EXPECT_GE(size, mesh.num_rows() >= num_parts ? 1 : 0);
                }
                EXPECT_EQ(cut(mesh, num_parts, {.method = method}).partition, result.partition);
            }
}

TEST(CutRows, LosesNothingOnRandomMeshes)
{
    std::mt19937 random(7);
    for (int i = 0; i < 40; ++i) {
        // A random part of a random mesh: holes, islands, unused points.
        const auto whole = i % 4 == 0   ? tet_cube(3)
                           : i % 4 == 1 ? cube(5)
                           : i % 4 == 2 ? sphere(6)
                                        : polyhedral_cube(4);
        std::vector<std::int32_t> cells, points(whole.num_points());
        for (std::int32_t cell = 0; cell < whole.num_cells(); ++cell)
            if (random() % 4 < 1 + i % 3u) cells.push_back(cell);
        for (std::size_t p = 0; p < points.size(); ++p) points[p] = static_cast<std::int32_t>(p);
        const auto mesh = extract_mesh(whole, cells, points);
        const auto names = methods_here();
        const auto& method = names[random() % names.size()];
        const auto graph = mesh_graph(mesh);
        for (const std::int32_t num_parts : {1, 2, 3, 7, 300})
            for (const std::int32_t layers : {0, 1, 3}) {
                SCOPED_TRACE("mesh " + std::to_string(i) + " by " + method + " in " + std::to_string(num_parts));
                const auto result = cut(mesh, num_parts, {.method = method, .contiguous = i % 2 == 0});

                const auto parts = extract_subdomains(mesh, graph, result.partition, layers);

                for (const auto& part : parts) ASSERT_NO_THROW(part.validate());
                EXPECT_EQ(difference(merge_subdomains(parts), mesh), "");
            }
    }
}

TEST(CutRows, GivesBoxesByBisection)
{
    const auto mesh = cube(8);
    const auto result = cut(mesh, 8, {.method = "rcb", .refine = false});

    const auto quality = measure_quality(result.partition, cell_graph(mesh));
    EXPECT_EQ(quality.edge_cut, 3 * 64);  // eight cubes
    EXPECT_EQ(quality.imbalance, 1.0);
}

TEST(CutRows, GivesRunsOfTheHilbertCurve)
{
    const auto mesh = cube(8);
    const auto result = cut(mesh, 8, {.method = "hilbert", .refine = false});

    // The curve fills one octant of a cube after the other.
    EXPECT_EQ(measure_quality(result.partition, cell_graph(mesh)).edge_cut, 3 * 64);
}

TEST(CutRows, BisectsByWeightsAndCapacities)
{
    const auto mesh = strip(12);
    const std::vector<double> capacities{1, 2};
    std::vector<std::int32_t> weights(12, 1);
    weights[0] = 13;  // half of all

    for (const char* method : {"rcb", "hilbert", "metis"}) {
        EXPECT_EQ(part_sizes(cut(mesh, 2, {.method = method}, {.capacities = capacities}).partition),
                  (std::vector<std::int64_t>{4, 8}))
            << method;
        const auto by_weight = cut(mesh, 2, {.method = method}, {.row_weights = weights}).partition;
        EXPECT_LE(imbalances(by_weight, {.row_weights = weights})[0], 13.0 / 12.0 + 1e-9) << method;
    }
}

TEST(CutRows, CutsInLevels)
{
    const auto mesh = cube(12);
    const auto graph = cell_graph(mesh);
    for (const auto& method : methods_here()) {
        const auto in_levels = cut(mesh, 8, {.method = method, .levels = {4, 2}}).partition;

        for (const auto size : part_sizes(in_levels)) EXPECT_LE(size, largest_part_allowed(mesh.num_rows(), 8, 1.03));
        // The nodes themselves are a good cut.
        auto nodes = in_levels;
        nodes.num_parts = 4;
        for (auto& owner : nodes.owners) owner /= 2;
        EXPECT_LE(imbalance(nodes), 1.03) << method;
        EXPECT_LT(edge_cut(nodes, graph), edge_cut(in_levels, graph)) << method;
        EXPECT_LT(edge_cut(nodes, graph), 2 * 2 * 144) << method;
    }
    EXPECT_TRUE(throws_with<InvalidInput>("multiply to 8, the parts are 6", [&] { cut(mesh, 6, {.levels = {4, 2}}); }));
}

TEST(CutRows, TakesTheBetterOfTwoByAuto)
{
    const auto mesh = cube(16);
    const auto result = cut(mesh, 8, {.method = "auto"});

    EXPECT_EQ(result.method, "rcb");  // nothing beats boxes in a box
    EXPECT_LE(edge_cut(result.partition, cell_graph(mesh)), 3 * 256);
}

TEST(CutRows, IsNoWorseWithALooserBound)
{
    const auto graph = cell_graph(cube(12));
    const std::vector<std::int32_t> weights(static_cast<std::size_t>(graph.num_rows()), 3);
    const auto cut_within = [&](double imbalance) {
        return edge_cut(cut_rows({&graph, {}, 7, {imbalance, 1, weights}, 1}, {}).partition, graph);
    };

    const auto within = cut_within(1.03);

    for (const double imbalance : {1e18, 1e19, 1e300}) EXPECT_LE(cut_within(imbalance), within) << imbalance;
}

TEST(CutRows, AreNotRefinedIfPartsMustBeWholeAlone)
{
    const auto mesh = cube(20);
    const auto graph = cell_graph(mesh);
    const auto plain = cut(mesh, 8, {.refine = false});

    const auto whole = cut(mesh, 8, {.refine = false, .contiguous = true});

    if (parts_in_pieces(plain.partition, graph).empty()) {
        EXPECT_EQ(whole.partition.owners, plain.partition.owners);
    }
    EXPECT_TRUE(parts_in_pieces(whole.partition, graph).empty());
}

TEST(CutRows, IsBetterWithQuality)
{
    double quick = 0, thorough = 0;
    const auto mesh = tet_cube(12);
    const auto graph = cell_graph(mesh);
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        quick += static_cast<double>(edge_cut(cut(mesh, 8, {}, {}, seed).partition, graph));
        thorough += static_cast<double>(
            edge_cut(cut(mesh, 8, {.effort = RefinementEffort::Thorough}, {}, seed).partition, graph));
    }
    EXPECT_LT(thorough, quick);
}

// Large enough for METIS to begin with joined rows.
TEST(CutRows, IsBalancedAndGoodOnManySimpleCells)
{
    const auto graph = cell_graph(tet_cube(45));
    ASSERT_GE(graph.num_rows(), 8 * 65536);
    std::vector<std::int32_t> weights;
    for (std::int64_t i = 0; i < graph.num_rows(); ++i)
        weights.insert(weights.end(), {1, static_cast<std::int32_t>(1 + i % 3)});
    const std::vector<double> capacities{1, 1, 1, 1, 2, 2, 2, 1};
    const PartitionProblem plain{&graph, {}, 8, {}, 1}, weighted{&graph, {}, 8, {1.03, 2, weights, capacities}, 1};

    const auto cut = cut_rows(plain, {}), again = cut_rows(plain, {}), weighted_cut = cut_rows(weighted, {});

    const auto metis = measure_cut(partition_with_metis(graph, {.num_parts = 8, .seed = 1}), graph);
    EXPECT_TRUE(measure_cut(cut.partition, graph).is_no_worse_than(metis));
    EXPECT_EQ(cut.partition.owners, again.partition.owners);
    for (const auto imbalance : imbalances(cut.partition, plain.balance)) EXPECT_LE(imbalance, 1.03 + 1e-4);
    for (const auto imbalance : imbalances(weighted_cut.partition, weighted.balance)) EXPECT_LE(imbalance, 1.03 + 1e-4);
}

TEST(CutRows, GoesByWhatEdgesWeigh)
{
    // A ring of 400 rows in which every tenth edge weighs little: all cuts can be there.
    Csr graph;
    std::vector<std::int32_t> weights;
    for (std::int32_t i = 0; i < 400; ++i) {
        const auto before = (i + 399) % 400, after = (i + 1) % 400;
        const auto weight_after = [](std::int32_t row) { return row % 10 == 9 ? 1 : 50; };
        graph.push_row(std::vector<std::int32_t>{std::min(before, after), std::max(before, after)});
        for (const auto j : graph.row(i)) weights.push_back(weight_after(j == after ? i : before));
    }

    for (const auto& method : methods_here()) {
        if (partition_method(method).needs_centroids) continue;
        for (const auto& levels : {std::vector<std::int32_t>{}, std::vector<std::int32_t>{2, 2}}) {
            const auto found =
                cut_rows({.graph = &graph, .num_parts = 4, .balance = {.imbalance = 1.1}, .edge_weights = weights},
                         {.method = method, .levels = levels});
            std::int64_t cost = 0;
            for (std::int32_t i = 0; i < 400; ++i)
                if (found.partition.owners[i] != found.partition.owners[(i + 1) % 400]) cost += i % 10 == 9 ? 1 : 50;
            EXPECT_LT(cost, 50) << method;
            EXPECT_LE(imbalance(found.partition), 1.1) << method;
        }
    }
}

TEST(CutRows, MakesPartsWholeWhereEdgesWeigh)
{
    const auto mesh = tet_cube(14);
    const auto graph = mesh_graph(mesh);
    const auto centroids = row_centroids(mesh);
    const std::vector<std::int32_t> weights(graph.num_entries(), 3);
    const PartitionProblem problem{.graph = &graph, .centroids = centroids, .num_parts = 40, .edge_weights = weights};

    const auto in_pieces = cut_rows(problem, {.method = "hilbert"}).partition;
    const auto whole = cut_rows(problem, {.method = "hilbert", .contiguous = true});

    EXPECT_FALSE(parts_in_pieces(in_pieces, graph).empty());  // else this shows nothing
    EXPECT_TRUE(whole.in_pieces.empty());
    EXPECT_TRUE(parts_in_pieces(whole.partition, graph).empty());
    EXPECT_LE(imbalance(whole.partition), 1.03);
}

TEST(CutRows, RefusesWhatIsMissing)
{
    const std::vector<std::int32_t> too_few(3, 1);
    const auto graph = cell_graph(strip(4));
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'hilbert'?",
                                          [&] { cut_rows({.graph = &graph, .num_parts = 2}, {.method = "hilbrt"}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("needs the rows' centroids",
                                          [&] { cut_rows({.graph = &graph, .num_parts = 2}, {.method = "rcb"}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("6 entries; there are 3 weights of edges", [&] {
        cut_rows({.graph = &graph, .num_parts = 2, .edge_weights = too_few}, {});
    }));
    EXPECT_TRUE(throws_with<InvalidInput>("has no graph", [] { cut_rows({.num_parts = 2}, {}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("num_parts is 0", [&] { cut_rows({.graph = &graph, .num_parts = 0}, {}); }));
}

}  // namespace
}  // namespace meshard
