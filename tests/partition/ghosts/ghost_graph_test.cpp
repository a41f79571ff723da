// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/row_weights.h"
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/ghosts/ghost_layer.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/random_numbers.h"
#include "tests/support/expect_error.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <span>

namespace meshard {
namespace {

std::int64_t num_common_points(const Mesh& mesh, std::int64_t a, std::int64_t b)
{
    const std::set<std::int32_t> of_a(mesh.cells.row(a).begin(), mesh.cells.row(a).end());
    return std::ranges::count_if(mesh.cells.row(b), [&](auto point) { return of_a.contains(point); });
}

TEST(GhostGraph, JoinsHexahedraByCommonPoints)
{
    const auto mesh = cube(4);
    const std::vector<std::pair<std::string, std::int64_t>> rules{{"vertex", 1}, {"edge", 2}, {"face", 4}};
    for (const auto& [name, fewest] : rules) {
        const auto graph = ghost_graph(mesh, parse_ghost_rule(name));

        for (std::int32_t a = 0; a < mesh.num_cells(); ++a) {
            std::vector<std::int32_t> expected;
            for (std::int32_t b = 0; b < mesh.num_cells(); ++b)
                if (a != b && num_common_points(mesh, a, b) >= fewest) expected.push_back(b);
            EXPECT_TRUE(std::ranges::equal(graph.row(a), expected)) << name << ' ' << a;
        }
    }
}

TEST(GhostGraph, JoinsPolyhedraAsTheirHexahedra)
{
    for (const char* name : {"face", "edge", "vertex"}) {
        const auto rule = parse_ghost_rule(name);
        EXPECT_EQ(ghost_graph(polyhedral_cube(3), rule), ghost_graph(cube(3), rule)) << name;
    }
}

TEST(GhostGraph, NestsItsRulesOnEveryMesh)
{
    for (const auto& [name, mesh] : sample_meshes()) {
        if (name.find("kinds") != std::string::npos || name.find("mixed") != std::string::npos) continue;
        const auto face = ghost_graph(mesh, {}), edge = ghost_graph(mesh, parse_ghost_rule("edge")),
                   vertex = ghost_graph(mesh, parse_ghost_rule("vertex"));
        EXPECT_EQ(face, mesh_graph(mesh)) << name;
        if (mesh.is_point_cloud()) continue;
        for (std::int64_t row = 0; row < mesh.num_rows(); ++row)
            EXPECT_TRUE(std::ranges::includes(vertex.row(row), edge.row(row))) << name << ' ' << row;
    }
}

/// Also far from the origin, where single precision has no digits left for the distances.
TEST(GhostGraph, FindsAllWithinARadius)
{
    for (auto mesh : {random_cloud(300, 2), tet_cube(3)}) {
        for (const double offset : {0.0, 1e7}) {
            auto points = mesh.points.to_doubles();
            for (auto& x : points) x += offset;
            mesh.points = DataArray::from("Points", points, 3);
            const double radius = 0.201;
            const auto graph = ghost_graph(mesh, {.neighbors = GhostNeighbors::Radius, .radius = radius});

            std::vector<std::array<double, 3>> means(mesh.num_rows());
            for (std::int64_t row = 0; row < mesh.num_rows(); ++row) {
                const std::vector<std::int32_t> own{static_cast<std::int32_t>(row)};
                const auto corners = mesh.is_point_cloud() ? std::span<const std::int32_t>(own) : mesh.cells.row(row);
                for (const auto point : corners)
                    for (int d = 0; d < 3; ++d)
                        means[row][d] += points[3 * point + d] / static_cast<double>(corners.size());
            }
            for (std::int32_t a = 0; a < mesh.num_rows(); ++a) {
                std::vector<std::int32_t> expected;
                for (std::int32_t b = 0; b < mesh.num_rows(); ++b)
                    if (a != b && std::hypot(means[a][0] - means[b][0], means[a][1] - means[b][1],
                                             means[a][2] - means[b][2]) <= radius)
                        expected.push_back(b);
                ASSERT_TRUE(std::ranges::equal(graph.row(a), expected)) << a << " at " << offset;
            }
        }
    }
}

TEST(GhostGraph, IsSymmetricByNearest)
{
    const auto graph = ghost_graph(tet_cube(3), parse_ghost_rule("nearest:5"));

    for (std::int32_t a = 0; a < graph.num_rows(); ++a) {
        EXPECT_GE(graph.row(a).size(), 5u);
        for (const auto b : graph.row(a)) EXPECT_TRUE(std::ranges::binary_search(graph.row(b), a));
    }
}

TEST(GhostGraph, ReadsAndWritesItsRules)
{
    for (const char* text : {"face", "edge", "vertex", "radius:0.25", "nearest:12"})
        EXPECT_EQ(to_string(parse_ghost_rule(text)), text);
    for (const char* text : {"", "faces", "radius", "radius:0", "radius:-1", "radius:x", "nearest:0", "nearest:1.5"})
        EXPECT_TRUE(throws_with<InvalidInput>("expected face, edge, vertex", [&] { parse_ghost_rule(text); })) << text;
}

TEST(RowWeights, CountsOwnedPoints)
{
    const auto mesh = strip(4);
    const auto graph = cell_graph(mesh);

    EXPECT_EQ(row_weights(mesh, graph, std::vector<std::string>{"points"}), (std::vector<std::int32_t>{4, 2, 2, 2}));
    EXPECT_EQ(row_weights(mesh, graph, std::vector<std::string>{"cells", "faces"}),
              (std::vector<std::int32_t>{1, 2, 1, 3, 1, 3, 1, 2}));
}

TEST(RowWeights, ReadsArraysAndRefusesBadOnes)
{
    auto mesh = strip(3);
    mesh.cell_data.push_back(DataArray::from("load", std::vector<double>{0.5, 1.5, 2}));
    mesh.cell_data.push_back(DataArray::from("bad", std::vector<double>{0.5, -1, 2}));
    mesh.cell_data.push_back(DataArray::from("zero", std::vector<double>{0, 0, 0}));
    const auto graph = cell_graph(mesh);

    const auto weights = row_weights(mesh, graph, std::vector<std::string>{"array:load"});
    EXPECT_NEAR(static_cast<double>(weights[1]) / weights[0], 3, 1e-6);
    EXPECT_NEAR(static_cast<double>(weights[2]) / weights[0], 4, 1e-6);
    EXPECT_TRUE(throws_with<InvalidInput>("the value -1",
                                          [&] { row_weights(mesh, graph, std::vector<std::string>{"array:bad"}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("all rows have the weight 0 by array:zero",
                                          [&] { row_weights(mesh, graph, std::vector<std::string>{"array:zero"}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("Did you mean 'load'?",
                                          [&] { row_weights(mesh, graph, std::vector<std::string>{"array:laod"}); }));
    EXPECT_TRUE(throws_with<InvalidInput>("unknown weight 'volume'",
                                          [&] { row_weights(mesh, graph, std::vector<std::string>{"volume"}); }));
}

TEST(RowWeights, SpreadsWhatPartsCost)
{
    const auto weights = weights_from_costs({0, 0, 1, 1, 1, 1}, std::vector<double>{2, 4});
    EXPECT_EQ(weights[0], weights[2]);
    const auto dear = weights_from_costs({0, 0, 1, 1}, std::vector<double>{3, 1});
    EXPECT_NEAR(static_cast<double>(dear[0]) / dear[3], 3, 1e-6);
}

TEST(GhostGraph, FindsAllCellsAtAHub)
{
    for (const auto& [name, make] : hub_meshes())
        for (const auto* rule : {"edge", "vertex"}) {
            SCOPED_TRACE(name + ", " + rule);
            const Mesh mesh = make(500);
            Partition partition{3, {}};
            for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
                partition.owners.push_back(static_cast<std::int32_t>(i % 3));

            const auto found = ghost_layers(ghost_relation(mesh, parse_ghost_rule(rule), partition, 2), partition, 2);

            const auto expected = ghost_layers(ghost_graph(mesh, parse_ghost_rule(rule)), partition, 2);
            for (std::size_t part = 0; part < expected.size(); ++part) {
                EXPECT_EQ(found[part].rows, expected[part].rows);
                EXPECT_EQ(found[part].levels, expected[part].levels);
            }
        }
}

// As pairs of cells, the neighbours take 40 GB.
TEST(GhostGraph, GrowsWithTheCellsAtAPointAndNotWithTheirSquare)
{
    const Mesh mesh = triangle_fan(100'000);
    Partition partition{3, {}};
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i)
        partition.owners.push_back(static_cast<std::int32_t>(3 * i / mesh.num_cells()));

    for (const auto& relation : {ghost_relation(mesh, parse_ghost_rule("vertex")),
                                 ghost_relation(mesh, parse_ghost_rule("vertex"), partition, 1)}) {
        const auto layers = ghost_layers(relation, partition, 1);
        for (std::int32_t part = 0; part < 3; ++part)
            EXPECT_EQ(layers[part].rows.size(), 100'000 - rows_by_part(partition).row(part).size());
    }
}

TEST(GhostGraph, NearOtherPartsLeadsToTheSameGhosts)
{
    RandomNumbers random(3);
    for (const auto& [name, mesh] : sample_meshes())
        for (const bool is_scattered : {false, true})
            for (const auto* rule : {"face", "edge", "vertex", "nearest:3"})
                for (const std::int32_t num_layers : {1, 2, 3}) {
                    SCOPED_TRACE(name + ", " + rule);
                    const auto num_rows = mesh.num_rows();
                    Partition partition{4, {}};
                    for (std::int64_t i = 0; i < num_rows; ++i)
                        partition.owners.push_back(
                            static_cast<std::int32_t>(is_scattered ? random.below(4) : 4 * i / num_rows));
                    const auto ghost_rule = parse_ghost_rule(rule);

                    const auto found =
                        ghost_layers(ghost_relation(mesh, ghost_rule, partition, num_layers), partition, num_layers);

                    const auto expected = ghost_layers(ghost_graph(mesh, ghost_rule), partition, num_layers);
                    for (std::size_t part = 0; part < expected.size(); ++part) {
                        EXPECT_EQ(found[part].rows, expected[part].rows);
                        EXPECT_EQ(found[part].levels, expected[part].levels);
                    }
                }
}

}  // namespace
}  // namespace meshard
