// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/cell_geometry.h"
#include "partition/mesh/surface_facing.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/vector_algebra.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace meshard {
namespace {

Mesh turned(Mesh mesh, std::int64_t begin = 0, std::int64_t end = std::numeric_limits<std::int64_t>::max())
{
    for (auto cell = begin; cell < std::min(end, mesh.num_cells()); ++cell)
        std::reverse(mesh.cells.indices.begin() + mesh.cells.offsets[cell],
                     mesh.cells.indices.begin() + mesh.cells.offsets[cell + 1]);
    return mesh;
}

Mesh bare(Mesh mesh)
{
    mesh.point_data.clear();
    mesh.cell_data.clear();
    return mesh;
}

/// The same surface, larger and elsewhere.
Mesh moved(Mesh mesh, double scale, double along_x)
{
    auto x = mesh.points.to_doubles();
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = scale * x[i] + (i % 3 == 0 ? along_x : 0);
    mesh.points = DataArray::from("Points", std::move(x), 3);
    return mesh;
}

Mesh together(const Mesh& a, const Mesh& b)
{
    Mesh both = bare(a);
    auto x = a.points.to_doubles();
    for (const auto value : b.points.to_doubles()) x.push_back(value);
    both.points = DataArray::from("Points", std::move(x), 3);
    for (std::int64_t cell = 0; cell < b.num_cells(); ++cell) {
        std::vector<std::int32_t> row;
        for (const auto point : b.cells.row(cell)) row.push_back(point + static_cast<std::int32_t>(a.num_points()));
        both.cells.push_row(row);
        both.cell_types.push_back(b.cell_types[cell]);
    }
    return both;
}

/// The polygons with centroids below a height.
Mesh below(const Mesh& mesh, double height)
{
    std::vector<std::int32_t> cells, points;
    const auto centroids = surface_centroids(mesh);
    for (std::int32_t i = 0; i < mesh.num_cells(); ++i)
        if (centroids[i][2] < height) cells.push_back(i);
    for (std::int32_t i = 0; i < mesh.num_points(); ++i) points.push_back(i);
    return extract_mesh(mesh, cells, points);
}

TEST(SurfaceFacing, TellsInsideFromOutside)
{
    for (const Mesh& mesh : {sphere(8), polygon_surface(), exploded(sphere(8)), below(sphere(12), 0.3),
                             exploded(below(sphere(12), -0.2)), together(sphere(5), moved(sphere(6), 1, 7))}) {
        EXPECT_EQ(surface_facing(mesh).facing(), Facing::Outward) << describe(surface_facing(mesh));
        EXPECT_EQ(surface_facing(turned(mesh)).facing(), Facing::Inward);
        double area = 0;
        for (const auto& vector : area_vectors(mesh)) area += norm(vector);
        EXPECT_NEAR(surface_facing(mesh).outward, area, 1e-12 * area);
    }
    EXPECT_TRUE(surface_facing(sphere(8)).is_closed);
    EXPECT_TRUE(surface_facing(exploded(sphere(8))).is_closed);
    EXPECT_FALSE(surface_facing(below(sphere(12), 0.3)).is_closed);
}

TEST(SurfaceFacing, FindsTheInwardPartOfMixedSurfaces)
{
    const Mesh ball = sphere(8);
    for (const Mesh& mesh : {ball, exploded(ball), below(sphere(12), 0.3)}) {
        const auto areas = area_vectors(mesh);
        double inward = 0;
        for (std::int64_t cell = 0; cell < 40; ++cell) inward += norm(areas[cell]);

        const auto sides = polygon_sides(turned(mesh, 0, 40));

        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
            EXPECT_EQ(sides.sides[cell], cell < 40 ? -1 : 1) << cell;
        const auto found = surface_facing(turned(mesh, 0, 40));
        EXPECT_EQ(found.facing(), Facing::Mixed);
        EXPECT_NEAR(found.inward, inward, 1e-12);
    }
    // Two bodies, one of which is inside out.
    EXPECT_EQ(surface_facing(together(ball, turned(moved(ball, 0.5, 4)))).facing(), Facing::Mixed);
    EXPECT_NEAR(surface_facing(together(ball, turned(moved(ball, 0.5, 4)))).inward,
                surface_facing(moved(ball, 0.5, 4)).outward, 1e-12);
}

TEST(SurfaceFacing, TakesTheInnerWallOfAHollowBodyAsOutward)
{
    const Mesh hollow = together(sphere(8), turned(moved(sphere(8), 0.5, 0)));
    EXPECT_EQ(surface_facing(hollow).facing(), Facing::Outward);
    EXPECT_EQ(surface_facing(together(sphere(8), moved(sphere(8), 0.5, 0))).facing(),
              Facing::Outward);  // one body in the other
    EXPECT_EQ(surface_facing(turned(hollow)).facing(), Facing::Inward);
    // Inside out in part: of the body, or of the wall of the cavity.
    const auto outer = sphere(8).num_cells();
    for (const auto begin : {std::int64_t{0}, outer}) {
        const auto sides = polygon_sides(turned(hollow, begin, begin + 40)).sides;
        for (std::int64_t cell = 0; cell < hollow.num_cells(); ++cell)
            EXPECT_EQ(sides[cell], cell >= begin && cell < begin + 40 ? -1 : 1) << cell;
    }
    // A body in the cavity of a body.
    EXPECT_EQ(surface_facing(together(hollow, moved(sphere(8), 0.2, 0))).facing(), Facing::Outward);
    EXPECT_EQ(surface_facing(turned(together(hollow, moved(sphere(8), 0.2, 0)))).facing(), Facing::Inward);
    // In the same box, but not inside.
    const Mesh bowl = turned(together(below(sphere(16), 0), moved(below(sphere(16), 0), 0.9, 0)));
    EXPECT_NE(surface_facing(together(bowl, turned(moved(sphere(6), 0.2, 0)))).facing(), Facing::Outward);
}

TEST(SurfaceFacing, SaysNothingOfFlatSheets)
{
    for (const Mesh& mesh :
         {strip(5), two_triangles(), with_hole(), random_cloud(4, 1), vertex_cells(3), empty_mesh(), cube(2)}) {
        const auto found = surface_facing(mesh);
        EXPECT_EQ(found.facing(), Facing::Unknown);
        EXPECT_EQ(found.outward + found.inward, 0);
    }
    EXPECT_EQ(describe(surface_facing(strip(5))), "the surface is open and does not tell where its inside is");
    Mesh broken = sphere(4);
    broken.points.mutable_values<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(surface_facing(broken).facing(), Facing::Unknown);
}

TEST(SurfaceFacing, TurnsPolygonsAndTheirNormals)
{
    for (const Mesh& whole : {bare(sphere(8)), bare(polygon_surface())}) {
        Mesh mesh = turned(whole, 2, 5);
        std::vector<double> normals, at_points;
        for (const auto& area : area_vectors(mesh)) normals.insert(normals.end(), area.begin(), area.end());
        for (const auto& x : point_positions(mesh)) at_points.insert(at_points.end(), {-x[0], -x[1], -x[2]});
        mesh.cell_data.push_back(DataArray::from("Normals", normals, 3));
        mesh.point_data.push_back(DataArray::from("Normals", at_points, 3));
        EXPECT_EQ(surface_facing(mesh, polygon_sides(mesh), &mesh.point_data[0]).facing(), Facing::Inward);
        EXPECT_EQ(surface_facing(mesh, polygon_sides(mesh), &mesh.cell_data[0]).facing(), Facing::Mixed);

        const auto found = orient_surface(mesh, Orient::Outward, "Normals");

        EXPECT_EQ(found.facing(), Facing::Outward);
        EXPECT_EQ(surface_facing(mesh).facing(), Facing::Outward);
        EXPECT_EQ(surface_facing(mesh, polygon_sides(mesh), &mesh.point_data[0]).facing(), Facing::Outward);
        EXPECT_NEAR(enclosed_volume(mesh), enclosed_volume(whole), 1e-12);
        for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
            EXPECT_EQ(mesh.cells.row(cell)[0], turned(whole, 2, 5).cells.row(cell)[0]);
    }
}

TEST(SurfaceFacing, TurnsPixelsAndPolygonsOfOrderTwoAndRefusesStrips)
{
    const auto one = [](std::uint8_t type, std::vector<std::int32_t> points) {
        Mesh mesh;
        mesh.points = DataArray::from(
            "Points", std::vector<double>{0, 0, 0, 2, 0, 0, 0, 2, 0, 2, 2, 0, 1, 0, 0, 2, 1, 0, 1, 2, 0, 0, 1, 0}, 3);
        mesh.cells.push_row(points);
        mesh.cell_types.push_back(type);
        return mesh;
    };
    const PolygonSides inward{{-1}, false};
    Mesh pixel = one(8, {0, 1, 2, 3}), quadratic = one(23, {0, 1, 3, 2, 4, 5, 6, 7}), strip = one(6, {0, 1, 2, 3});
    turn_outward(pixel, inward);
    turn_outward(quadratic, inward);
    EXPECT_EQ(pixel.cells.indices, (std::vector<std::int32_t>{0, 2, 1, 3}));
    EXPECT_EQ(quadratic.cells.indices,
              (std::vector<std::int32_t>{0, 2, 3, 1, 7, 6, 5, 4}));  // each mid-edge point still between its corners
    EXPECT_TRUE(
        throws_with<InvalidInput>("cell 0 (triangle_strip) points inward", [&] { turn_outward(strip, inward); }));
    EXPECT_TRUE(throws_with<InvalidInput>("expected outward or as-is", [] { parse_orient("inward"); }));
    EXPECT_EQ(parse_orient("as-is"), Orient::AsIs);
}

}  // namespace
}  // namespace meshard
