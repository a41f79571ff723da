// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/ghosts/ghost_graph.h"
#include "partition/mesh/joined_points.h"
#include "partition/mesh/mesh_graph.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace meshard {
namespace {

TEST(JoinPoints, FindsTheNearestThatIsKept)
{
    std::mt19937 random(1);
    for (const double tolerance : {0.0, 0.05, 0.2}) {
        // Few places, many of them exactly as far apart as the tolerance.
        std::vector<double> coordinates;
        for (int i = 0; i < 3 * 700; ++i) coordinates.push_back(0.05 * static_cast<double>(random() % 16) - 0.4);
        const auto points = DataArray::from("Points", coordinates, 3);

        const auto joined = points_joined_with(points, tolerance);

        std::vector<std::int32_t> kept;
        for (std::int32_t i = 0; i < 700; ++i) {
            std::int32_t best = -1;
            double least = tolerance * tolerance;
            for (const auto j : kept) {
                double distance = 0;
                for (int d = 0; d < 3; ++d) distance += std::pow(coordinates[3 * i + d] - coordinates[3 * j + d], 2);
                if (distance <= least && (best < 0 || distance < least)) {
                    best = j;
                    least = distance;
                }
            }
            if (best < 0) kept.push_back(i);
            ASSERT_EQ(joined[i], best < 0 ? i : best) << "point " << i << ", tolerance " << tolerance;
        }
        EXPECT_LT(kept.size(), 700u);
    }
    EXPECT_EQ(points_joined_with(DataArray::from("Points", std::vector<double>{0, -0.0, 1, -0.0, 0, 1}, 3), 0),
              (std::vector<std::int32_t>{0, 0}));
}

TEST(JoinPoints, PutsTogetherWhatWasTakenApart)
{
    for (const Mesh& mesh : {cube(3), tet_cube(2), polyhedral_cube(2), mixed_cells(), sphere(4)}) {
        const Mesh apart = exploded(mesh);

        const auto joined = join_points(apart, 0);

        joined.mesh.validate();
        EXPECT_EQ(joined.mesh.num_points(), mesh.num_points());
        EXPECT_EQ(joined.num_joined, apart.num_points() - mesh.num_points());
        EXPECT_EQ(cell_graph(joined.mesh), cell_graph(mesh));
        EXPECT_TRUE(joined.differing_fields.empty());
        const GhostRule vertex{.neighbors = GhostNeighbors::Vertex};
        EXPECT_EQ(ghost_graph(joined.mesh, vertex), ghost_graph(mesh, vertex));
    }
}

TEST(JoinPoints, KeepsTheFirstValueAndNamesFieldsThatDiffer)
{
    Mesh mesh = exploded(strip(2));
    std::vector<double> steps(mesh.num_points(), 1);
    steps[4] = 2;
    mesh.point_data.push_back(DataArray::from("step", steps));

    const auto joined = join_points(mesh, 0);

    EXPECT_EQ(joined.differing_fields, std::vector<std::string>{"step"});
    EXPECT_EQ(joined.num_joined, 2);
    for (const auto value : find_array(joined.mesh.point_data, "step")->values<double>()) EXPECT_EQ(value, 1);
}

TEST(JoinPoints, CountsCellsThatAreApart)
{
    const Mesh whole = cube(3), apart = exploded(whole);
    const auto by_face = find_unjoined_cells(apart, cell_graph(apart)),
               by_point = find_cells_without_common_points(apart, 3);
    EXPECT_EQ(by_face.num_isolated, 27);
    EXPECT_EQ(by_face.num_coincident, 27 * 8 - 64);
    EXPECT_EQ(by_point.num_isolated, 27);
    EXPECT_EQ(by_point.num_coincident, 27 * 8 - 64);
    for (const Mesh& mesh : {whole, two_triangles(), vertex_cells(5), islands(3, 4)}) {
        EXPECT_EQ(describe(find_unjoined_cells(mesh, mesh_graph(mesh)), "f", "face", "so"), "");
        EXPECT_EQ(describe(find_cells_without_common_points(mesh, 2), "f", "point", "so"), "");
    }
    // Two halves that only coincide.
    Mesh halves = cube(2);
    std::vector<std::int32_t> sources;
    for (std::int32_t p = 0; p < halves.num_points(); ++p) sources.push_back(p);
    for (std::int64_t cell = 4; cell < 8; ++cell)
        for (auto at = halves.cells.offsets[cell]; at < halves.cells.offsets[cell + 1]; ++at)
            halves.cells.indices[at] += 27;
    for (std::int32_t p = 0; p < 27; ++p) sources.push_back(p);
    halves.points = halves.points.gather(sources);
    halves.point_data.clear();
    const auto found = find_unjoined_cells(halves, cell_graph(halves));
    EXPECT_EQ(found.num_isolated, 0);
    EXPECT_EQ(found.num_coincident, 9);
    EXPECT_EQ(find_cells_without_common_points(halves, 3).num_coincident, 9);
    EXPECT_EQ(describe(found, "a.vtu", "face", "they are apart."),
              "9 points lie at the place of another: they are apart. If cells there should touch, join their points: "
              "`meshard convert a.vtu OUT --join-points "
              "0`.");
}

TEST(JoinPoints, RefusesWhatHasNoMeaning)
{
    EXPECT_TRUE(throws_with<InvalidInput>("tolerance is -1", [] { join_points(cube(1), -1); }));
    EXPECT_TRUE(throws_with<InvalidInput>("expected 0 or a length", [] { join_points(cube(1), NAN); }));
    EXPECT_TRUE(throws_with<InvalidInput>("is a point cloud", [] { join_points(random_cloud(3, 1), 0); }));
    Mesh mesh = strip(1);
    mesh.points.mutable_values<float>()[4] = INFINITY;
    EXPECT_TRUE(throws_with<InvalidInput>("point 1 has a coordinate", [&] { join_points(mesh, 0); }));
}

}  // namespace
}  // namespace meshard
