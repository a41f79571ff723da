// SPDX-License-Identifier: Apache-2.0
#include "partition/error.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/surface_triangles.h"
#include "partition/mesh/vector_algebra.h"
#include "tests/support/expect_error.h"
#include "tests/support/sample_meshes.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numbers>
#include <set>

namespace meshard {
namespace {

/// One cell on the given points, in their order.
Mesh one_cell(std::uint8_t type, const std::vector<double>& coordinates)
{
    Mesh mesh;
    mesh.points = DataArray::from("Points", coordinates, 3);
    std::vector<std::int32_t> points;
    for (std::int32_t i = 0; i < mesh.num_points(); ++i) points.push_back(i);
    mesh.cells.push_row(points);
    mesh.cell_types.push_back(type);
    return mesh;
}

void expect_near(const Vector3& found, const Vector3& expected, double tolerance = 1e-14)
{
    for (int d = 0; d < 3; ++d) EXPECT_NEAR(found[d], expected[d], tolerance) << "component " << d;
}

TEST(AreaVectors, FollowTheRightHandRule)
{
    expect_near(area_vectors(one_cell(5, {0, 0, 0, 2, 0, 0, 0, 1, 0}))[0], {0, 0, 1});
    expect_near(area_vectors(one_cell(9, {0, 0, 0, 0, 3, 0, 2, 3, 0, 2, 0, 0}))[0], {0, 0, -6});
    expect_near(area_vectors(one_cell(8, {0, 0, 0, 2, 0, 0, 0, 3, 0, 2, 3, 0}))[0], {0, 0, 6});  // pixel: 0 1 3 2
}

TEST(AreaVectors, CountAPolygonThatIsNotConvexOnce)
{
    // An L of three unit squares.
    const Mesh mesh = one_cell(7, {0, 0, 0, 2, 0, 0, 2, 1, 0, 1, 1, 0, 1, 2, 0, 0, 2, 0});

    expect_near(area_vectors(mesh)[0], {0, 0, 3});
    expect_near(surface_centroids(mesh)[0], {5.0 / 6, 5.0 / 6, 0});
}

TEST(AreaVectors, DependOnTheEdgesOfAPolygonThatIsNotPlane)
{
    // A saddle over the unit square: the shadow on each plane counts, whichever point comes first.
    const std::vector<double> a{0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 1};
    const std::vector<double> b{1, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0};

    expect_near(area_vectors(one_cell(9, a))[0], {0, 0, 1});
    expect_near(area_vectors(one_cell(9, b))[0], {0, 0, 1});
}

TEST(AreaVectors, UseTheCornersOfHigherOrderCells)
{
    // Quadratic triangle: the three points on the edges come last.
    const Mesh mesh = one_cell(22, {0, 0, 0, 2, 0, 0, 0, 2, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0});

    expect_near(area_vectors(mesh)[0], {0, 0, 2});
}

TEST(AreaVectors, AreZeroForCellsThatAreNoPolygons)
{
    for (const Mesh& mesh : {cube(1), one_cell(3, {0, 0, 0, 1, 0, 0}), one_cell(1, {1, 2, 3})}) {
        expect_near(area_vectors(mesh)[0], {0, 0, 0}, 0);
    }
    expect_near(surface_centroids(cube(1))[0], {0.5, 0.5, 0.5});
    EXPECT_TRUE(area_vectors(empty_mesh()).empty());
}

TEST(AreaVectors, AddUpToZeroOnClosedSurfaces)
{
    for (const Mesh& mesh : {sphere(12), polygon_surface()}) {
        Vector3 sum{};
        for (const Vector3& area : area_vectors(mesh)) {
            for (int d = 0; d < 3; ++d) sum[d] += area[d];
        }
        expect_near(sum, {0, 0, 0}, 1e-6);  // the points are Float32
    }
}

/// A U of seven unit squares, three high, whose mean is in its notch: from corner `first` on, in either orientation.
std::vector<double> notched(int first, bool is_reversed)
{
    constexpr std::array<std::array<double, 2>, 8> corners{
        {{0, 0}, {3, 0}, {3, 3}, {2, 3}, {2, 1}, {1, 1}, {1, 3}, {0, 3}}};
    std::vector<double> coordinates;
    for (int k = 0; k < 8; ++k) {
        const auto& [x, y] = corners[((is_reversed ? first - k : first + k) + 8) % 8];
        coordinates.insert(coordinates.end(), {x, y, 0.5 * x});
    }
    return coordinates;
}

TEST(SurfaceTriangles, CoverAConcavePolygonAndNoMore)
{
    for (int first = 0; first < 8; ++first)
        for (const bool is_reversed : {false, true}) {
            SCOPED_TRACE(first);
            const Mesh mesh = one_cell(7, notched(first, is_reversed));

            const auto [points, triangles] = surface_triangles(mesh);

            double sum = 0;
            for (std::size_t t = 0; t < triangles.size(); t += 3) {
                std::array<Vector3, 3> x{};
                for (int k = 0; k < 3; ++k)
                    for (int d = 0; d < 3; ++d) x[k][d] = points[3 * triangles[t + k] + d];
                const double area = 0.5 * cross(x[1] - x[0], x[2] - x[0])[2];  // of its shadow on z = 0
                EXPECT_GT(is_reversed ? -area : area, 0);
                sum += std::abs(area);
                const auto middle = (1.0 / 3) * (x[0] + x[1] + x[2]);
                EXPECT_FALSE(middle[0] > 1 && middle[0] < 2 && middle[1] > 1) << "in the notch";
            }
            EXPECT_NEAR(sum, 7, 1e-12);
            expect_near(surface_centroids(mesh)[0], {1.5, 19.0 / 14, 0.75}, 1e-12);
        }
}

/// A polygon on z = 0 that begins at one of its corners.
Mesh begun_at(std::size_t first, const std::vector<std::array<double, 2>>& corners)
{
    std::vector<double> coordinates;
    for (std::size_t k = 0; k < corners.size(); ++k) {
        const auto& corner = corners[(first + k) % corners.size()];
        coordinates.insert(coordinates.end(), {corner[0], corner[1], 0});
    }
    return one_cell(7, coordinates);
}

TEST(SurfaceTriangles, KeepTheCornersWithinASide)
{
    // A concave polygon with a corner in the middle of its first side, which neighbours may have as two sides.
    const std::vector<std::array<double, 2>> corners{{1, 0}, {2, 0}, {2, 2}, {1, 0.2}, {0, 2}, {0, 0}};
    for (std::size_t first = 0; first < corners.size(); ++first) {
        const auto [points, triangles] = surface_triangles(begun_at(first, corners));
        EXPECT_EQ(triangles.size(), 3 * 4U);
        std::set<std::array<std::int64_t, 2>> sides;
        for (std::size_t t = 0; t < triangles.size(); t += 3)
            for (int k = 0; k < 3; ++k) sides.insert({triangles[t + k], triangles[t + (k + 1) % 3]});
        for (std::int64_t k = 0; k < 6; ++k) EXPECT_TRUE(sides.contains({k, (k + 1) % 6})) << first << " " << k;
    }
}

TEST(SurfaceTriangles, LeaveOutAHoleBehindABridge)
{
    // A square with a square hole, one line around both by way of a bridge, each of whose sides has a straight corner.
    const std::vector<std::array<double, 2>> corners{{-1, 1},     {-1, -1},        {1, -1},     {1, 1},
                                                     {-1, 1},     {-0.625, 0.625}, {-0.5, 0.5}, {0.5, 0.5},
                                                     {0.5, -0.5}, {-0.5, -0.5},    {-0.5, 0.5}, {-0.75, 0.75}};
    for (std::size_t first = 0; first < corners.size(); ++first) {
        const auto [points, triangles] = surface_triangles(begun_at(first, corners));
        double sum = 0;
        for (std::size_t t = 0; t < triangles.size(); t += 3) {
            std::array<Vector3, 3> x{};
            for (int k = 0; k < 3; ++k)
                for (int d = 0; d < 3; ++d) x[k][d] = points[3 * triangles[t + k] + d];
            const double area = 0.5 * cross(x[1] - x[0], x[2] - x[0])[2];
            EXPECT_GT(area, 0) << first;
            sum += area;
            const auto middle = (1.0 / 3) * (x[0] + x[1] + x[2]);
            EXPECT_GE(std::max(std::abs(middle[0]), std::abs(middle[1])), 0.5) << "in the hole, " << first;
        }
        EXPECT_NEAR(sum, 4 - 1, 1e-12) << first;
    }
}

TEST(SurfaceTriangles, OfAPolygonThatCrossesItselfStayAFan)
{
    EXPECT_EQ(surface_triangles(one_cell(9, {0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 1, 0})).triangles.size(), 12U);
}

TEST(AreaVectors, RunAlongStrips)
{
    const Mesh mesh =
        one_cell(6, {0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 2, 0, 0});  // one and a half unit squares, seen from below

    expect_near(area_vectors(mesh)[0], {0, 0, -1.5});
    expect_near(surface_centroids(mesh)[0], {(0.5 * 1.0 + 0.5 * 4.0 / 3) / 1.5, (0.5 + 1.0 / 6) / 1.5, 0}, 1e-14);
}

TEST(SurfaceArea, OfAStripIsThatOfItsTriangles)
{
    const Mesh roof = one_cell(6, {0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1, 2, 0, 0, 2, 1, 0});  // two sides that bend away
    EXPECT_NEAR(surface_area(roof), 2 * std::numbers::sqrt2, 1e-12);
    EXPECT_LT(norm(area_vectors(roof)[0]), 2.1);
    EXPECT_TRUE(throws_with<InvalidInput>("strips of triangles", [&] { require_single_polygons(roof); }));
}

TEST(EnclosedVolume, NearsThatOfTheSphere)
{
    EXPECT_NEAR(enclosed_volume(sphere(60)), 4 * std::numbers::pi / 3, 0.01);
    EXPECT_EQ(enclosed_volume(empty_mesh()), 0);
}

TEST(SurfaceEdges, TellClosedFromOpen)
{
    const SurfaceEdges closed = surface_edges(sphere(5));
    const SurfaceEdges open = surface_edges(with_hole());

    EXPECT_TRUE(closed.is_closed());
    EXPECT_EQ(2 * closed.num_edges, 3 * sphere(5).num_cells());
    EXPECT_FALSE(open.is_closed());
    EXPECT_EQ(open.num_boundary, 16);
    EXPECT_EQ(open.num_edges, 24);
    EXPECT_FALSE(surface_edges(empty_mesh()).is_closed());
}

TEST(SurfaceEdges, CountThoseOfThreePolygons)
{
    Mesh mesh = one_cell(5, {0, 0, 0, 1, 0, 0, 0, 1, 0});
    const std::int32_t again[] = {2, 1, 0};
    for (int i = 0; i < 2; ++i) {
        mesh.cells.push_row(again);
        mesh.cell_types.push_back(5);
    }

    EXPECT_EQ(surface_edges(mesh).num_edges, 3);
    EXPECT_EQ(surface_edges(mesh).num_non_manifold, 3);
}

}  // namespace
}  // namespace meshard
