// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/mesh_graph.h"
#include "partition/mesh/surface_geometry.h"
#include "tests/support/expect_error.h"
#include "tests/support/hub_meshes.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>

namespace meshard {
namespace {

TEST(CellGeometry, MeasuresSolidsOfEveryKind)
{
    const auto measures = cell_measures(mixed_cells());

    const double sizes[] = {1, 1.0 / 3, 1.25 / 6, 0.5, 1, 1};
    const Vector3 centroids[] = {{0.5, 0.5, 0.5},         {0.5, 0.5, 1.25}, {1.125, 0.5, 1.375},
                                 {4.0 / 3, 0.5, 1.0 / 3}, {0.5, 0.5, -0.5}, {0.5, 0.5, -1}};
    for (int i = 0; i < 6; ++i) {
        EXPECT_NEAR(measures.sizes[i], sizes[i], 1e-15) << i;
        for (int d = 0; d < 3; ++d) EXPECT_NEAR(measures.centroids[i][d], centroids[i][d], 1e-15) << i;
    }
}

TEST(CellGeometry, VolumesFillTheCube)
{
    for (const auto& mesh : {cube(3), polyhedral_cube(3), tet_cube(3)}) {
        const auto measures = cell_measures(mesh);
        Vector3 middle{};
        for (std::size_t i = 0; i < measures.sizes.size(); ++i)
            add_scaled(middle, measures.centroids[i], measures.sizes[i]);

        EXPECT_NEAR(std::accumulate(measures.sizes.begin(), measures.sizes.end(), 0.0), 1, 1e-14);
        for (const double x : middle) EXPECT_NEAR(x, 0.5, 1e-14);
    }
}

TEST(CellGeometry, MeasuresConcaveSolids)
{
    // A U of 3 x 3 with a slot of 1 x 2, one thick; its middle lies in the slot, and faces are listed either way round.
    const double outline[8][2] = {{0, 0}, {3, 0}, {3, 3}, {2, 3}, {2, 1}, {1, 1}, {1, 3}, {0, 3}};
    std::vector<double> positions;
    std::vector<std::int32_t> points(16), stream{10};
    std::iota(points.begin(), points.end(), 0);
    for (const double z : {0.0, 1.0}) {
        for (const auto& corner : outline) positions.insert(positions.end(), {corner[0], corner[1], z});
    }
    for (const std::int32_t first : {0, 8}) {
        stream.push_back(8);
        for (std::int32_t k = 0; k < 8; ++k) stream.push_back(first + k);
    }
    for (std::int32_t k = 0; k < 8; ++k) {
        const std::int32_t next = (k + 1) % 8;
        if (k % 3 == 0)
            stream.insert(stream.end(), {4, k, next, next + 8, k + 8});
        else
            stream.insert(stream.end(), {4, k, k + 8, next + 8, next});
    }
    Mesh mesh;
    mesh.points = DataArray::from("Points", positions, 3);
    mesh.cells.push_row(points);
    mesh.cell_types = {42};
    mesh.face_streams.push_row(stream);

    const auto measures = cell_measures(mesh);

    EXPECT_NEAR(measures.sizes[0], 7, 1e-14);
    EXPECT_NEAR(measures.centroids[0][0], 1.5, 1e-14);
    EXPECT_NEAR(measures.centroids[0][1], (9 * 1.5 - 2 * 2) / 7, 1e-14);
    EXPECT_NEAR(measures.centroids[0][2], 0.5, 1e-14);
}

TEST(CellGeometry, MeasuresConcaveSolidsWhoseTurnedFacesCancel)
{
    // A block of 3 x 6 with a slot of 1 x 1: the mean of the corners sees both of its walls from behind.
    const double outline[8][2] = {{0, -3}, {3, -3}, {3, 3}, {2, 3}, {2, 2}, {1, 2}, {1, 3}, {0, 3}};
    for (const bool turns_some : {false, true}) {
        std::vector<double> positions;
        std::vector<std::int32_t> points(16), stream{10, 8, 7, 6, 5, 4, 3, 2, 1, 0, 8, 8, 9, 10, 11, 12, 13, 14, 15};
        std::iota(points.begin(), points.end(), 0);
        for (const double z : {0.0, 1.0})
            for (const auto& corner : outline) positions.insert(positions.end(), {corner[0], corner[1], z});
        for (std::int32_t k = 0; k < 8; ++k) {
            const std::int32_t next = (k + 1) % 8;
            if (turns_some && k % 3 == 0)
                stream.insert(stream.end(), {4, k, k + 8, next + 8, next});
            else
                stream.insert(stream.end(), {4, k, next, next + 8, k + 8});
        }
        Mesh mesh;
        mesh.points = DataArray::from("Points", positions, 3);
        mesh.cells.push_row(points);
        mesh.cell_types = {42};
        mesh.face_streams.push_row(stream);

        const auto measures = cell_measures(mesh);

        EXPECT_NEAR(measures.sizes[0], 17, 1e-12);
        EXPECT_NEAR(measures.centroids[0][1], -2.5 / 17, 1e-13);
    }
}

TEST(CellGeometry, MeasuresWedgesWrittenAsHexahedra)
{
    // Two opposite edges of one face shrink to points: half a cube is left, whichever edges they are.
    constexpr std::int32_t faces[6][4] = {{0, 1, 5, 4}, {1, 2, 6, 5}, {2, 3, 7, 6},
                                          {3, 0, 4, 7}, {0, 3, 2, 1}, {4, 5, 6, 7}};
    for (const auto& [a, b, c, d] : faces)
        for (const bool along : {false, true}) {
            std::vector<std::int32_t> points{0, 1, 2, 3, 4, 5, 6, 7};
            points[along ? b : d] = a;
            points[c] = along ? d : b;
            Mesh mesh;
            mesh.points = DataArray::from(
                "Points", std::vector<double>{0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1},
                3);
            mesh.cells.push_row(points);
            mesh.cell_types = {12};
            EXPECT_NEAR(cell_measures(mesh).sizes[0], 0.5, 1e-14) << a << b << c << d << along;
        }
}

TEST(CellGeometry, FlatSolidsAndCornersInALineHaveNoSize)
{
    // Turned, so that rounding leaves them a volume and an area above 0.
    const double c = std::cos(0.7), s = std::sin(0.7);
    const auto turned = [&](double x, double y) {
        return Vector3{c * x - s * y + 0.3, s * c * x + c * c * y, s * s * x + s * c * y};
    };
    for (const double shift : {0.0, 0.1, 0.37, 1.0 / 3}) {
        Mesh solid, line;
        std::vector<double> square, row;
        for (const auto& p : {turned(shift, 0), turned(1, shift), turned(1, 1 + shift), turned(shift, 1)})
            square.insert(square.end(), p.begin(), p.end());
        for (const double at : {0.0, 0.3 + shift, 1.1}) {
            const auto p = turned(at, 2 * at);
            row.insert(row.end(), p.begin(), p.end());
        }
        solid.points = DataArray::from("Points", square, 3);
        solid.cells.push_row(std::vector<std::int32_t>{0, 1, 2, 3});
        solid.cell_types = {10};
        const auto measures = cell_measures(solid);
        EXPECT_EQ(measures.sizes[0], 0);
        EXPECT_LT(norm(measures.centroids[0] - turned((1 + shift) / 2, (1 + shift) / 2)), 1e-14);
        line.kind = MeshKind::Surface;
        line.points = DataArray::from("Points", row, 3);
        line.cells.push_row(std::vector<std::int32_t>{0, 1, 2});
        line.cell_types = {5};
        const double middle = (1.4 + shift) / 3;
        EXPECT_LT(norm(surface_centroids(line)[0] - turned(middle, 2 * middle)), 1e-14);
    }
}

TEST(CellGeometry, MeasuresLinesByTheirLengths)
{
    Mesh mesh;
    mesh.points = DataArray::from("Points", std::vector<double>{0, 0, 0, 3, 4, 0, 3, 4, 1}, 3);
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1});
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2});
    mesh.cells.push_row(std::vector<std::int32_t>{2});
    mesh.cell_types = {3, 4, 1};

    const auto measures = cell_measures(mesh);

    EXPECT_EQ(measures.sizes, (std::vector<double>{5, 6, 0}));
    EXPECT_EQ(measures.centroids[0], (Vector3{1.5, 2, 0}));
    EXPECT_NEAR(measures.centroids[1][2], 0.5 / 6, 1e-15);
    EXPECT_EQ(measures.centroids[2], (Vector3{3, 4, 1}));
}

TEST(CellGeometry, FacetNeighborsAreThoseOfTheCellGraph)
{
    for (const auto& mesh :
         {cube(3), polyhedral_cube(2), tet_cube(2), sphere(4), strip(5), polygon_surface(), islands(2, 3)}) {
        const auto neighbors = facet_neighbors(mesh);

        EXPECT_EQ(neighbors.cells, cell_graph(mesh));
    }
    for (const double size : facet_neighbors(cube(4)).sizes) EXPECT_NEAR(size, 1.0 / 16, 1e-15);
    for (const double size : facet_neighbors(strip(3)).sizes) EXPECT_EQ(size, 1);
    // A wall polygon is no neighbour of the solid behind it.
    EXPECT_EQ(facet_neighbors(mixed_cells()).cells.row(5).size(), 0u);
}

TEST(CellGeometry, MeasuresFacetsOfHubs)
{
    constexpr std::int32_t n = 50'000;
    const auto polygon = facet_neighbors(polygon_with_triangles(n));
    const double edge = 2 * std::sin(std::numbers::pi / n), face = 0.5 * std::sin(2 * std::numbers::pi / n);
    ASSERT_EQ(polygon.cells.row(0).size(), static_cast<std::size_t>(n));
    for (const double size : polygon.sizes) ASSERT_NEAR(size, edge, 1e-12);
    const auto polyhedron = facet_neighbors(polyhedron_with_tetrahedra(n));
    ASSERT_EQ(polyhedron.cells.row(0).size(), static_cast<std::size_t>(2 * n));
    for (std::int64_t k = 0; k < 2 * n; ++k) ASSERT_NEAR(polyhedron.sizes[k], face, 1e-12);
    EXPECT_NEAR(cell_measures(polyhedron_with_tetrahedra(n)).sizes[0], std::numbers::pi, 1e-6);
}

TEST(CellGeometry, RefusesSolidsWithoutFaces)
{
    Mesh mesh;
    mesh.points = DataArray::from("Points", std::vector<double>{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1}, 3);
    mesh.cells.push_row(std::vector<std::int32_t>{0, 1, 2, 3});
    mesh.cell_types = {41};

    EXPECT_TRUE(throws_with<InvalidInput>("convex", [&] { cell_measures(mesh); }));
}

}  // namespace
}  // namespace meshard
