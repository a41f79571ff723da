// SPDX-License-Identifier: Apache-2.0
#include "tests/support/hub_meshes.h"

#include <array>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <utility>

namespace meshard {

namespace {

/// Of VTK.
struct VtkType {
    static constexpr std::uint8_t line = 3, triangle = 5, polygon = 7, tetra = 10, polyhedron = 42;
};

class Builder {
public:
    std::int32_t point(double x, double y, double z)
    {
        coordinates_.insert(coordinates_.end(), {x, y, z});
        return static_cast<std::int32_t>(coordinates_.size() / 3 - 1);
    }

    /// n points on a circle around the z axis; the first one's number.
    std::int32_t circle(std::int32_t n, double radius, double z, double turn = 0)
    {
        const auto first = static_cast<std::int32_t>(coordinates_.size() / 3);
        for (std::int32_t i = 0; i < n; ++i) {
            const auto angle = 2 * std::numbers::pi * (i + turn) / n;
            point(radius * std::cos(angle), radius * std::sin(angle), z);
        }
        return first;
    }

    void cell(std::uint8_t type, std::initializer_list<std::int32_t> points) { cell(type, std::vector(points)); }

    void cell(std::uint8_t type, const std::vector<std::int32_t>& points)
    {
        mesh_.cells.push_row(points);
        mesh_.cell_types.push_back(type);
    }

    Mesh finish()
    {
        mesh_.points = DataArray::from("Points", std::move(coordinates_), 3);
        return std::move(mesh_);
    }

    Mesh& mesh() { return mesh_; }

private:
    Mesh mesh_;
    std::vector<double> coordinates_;
};

}  // namespace

Mesh star_of_lines(std::int32_t n)
{
    Builder build;
    const auto hub = build.point(0, 0, 0), rim = build.circle(n, 1, 0);
    for (std::int32_t i = 0; i < n; ++i) build.cell(VtkType::line, {hub, rim + i});
    return build.finish();
}

Mesh triangles_at_an_edge(std::int32_t n)
{
    Builder build;
    const auto low = build.point(0, 0, 0), high = build.point(0, 0, 1), rim = build.circle(n, 1, 0.5);
    for (std::int32_t i = 0; i < n; ++i) build.cell(VtkType::triangle, {low, high, rim + i});
    return build.finish();
}

Mesh tetrahedra_at_a_face(std::int32_t n)
{
    Builder build;
    const auto a = build.point(0, 0, 0), b = build.point(1, 0, 0), c = build.point(0, 1, 0);
    for (std::int32_t i = 0; i < n; ++i) build.cell(VtkType::tetra, {a, b, c, build.point(0.3, 0.3, 1 + 0.001 * i)});
    return build.finish();
}

Mesh triangle_fan(std::int32_t n)
{
    Builder build;
    const auto hub = build.point(0, 0, 0), rim = build.circle(n, 1, 0);
    for (std::int32_t i = 0; i < n; ++i) build.cell(VtkType::triangle, {hub, rim + i, rim + (i + 1) % n});
    return build.finish();
}

Mesh polygon_with_triangles(std::int32_t n)
{
    Builder build;
    const auto inner = build.circle(n, 1, 0), outer = build.circle(n, 1.1, 0, 0.5);
    std::vector<std::int32_t> ring;
    for (std::int32_t i = 0; i < n; ++i) ring.push_back(inner + i);
    build.cell(VtkType::polygon, ring);
    for (std::int32_t i = 0; i < n; ++i) build.cell(VtkType::triangle, {inner + i, outer + i, inner + (i + 1) % n});
    return build.finish();
}

Mesh polyhedron_with_tetrahedra(std::int32_t n)
{
    Builder build;
    const auto below = build.point(0, 0, 0), above = build.point(0, 0, 1), low = build.circle(n, 1, 0),
               high = build.circle(n, 1, 1);
    std::vector<std::int32_t> points{below, above}, stream{3 * n};
    for (std::int32_t i = 0; i < 2 * n; ++i) points.push_back(low + i);
    for (std::int32_t i = 0; i < n; ++i) {
        const auto next = (i + 1) % n;
        for (const auto& face : {std::vector{below, low + next, low + i}, std::vector{above, high + i, high + next},
                                 std::vector{low + i, low + next, high + next, high + i}}) {
            stream.push_back(static_cast<std::int32_t>(face.size()));
            stream.insert(stream.end(), face.begin(), face.end());
        }
    }
    build.cell(VtkType::polyhedron, points);
    build.mesh().face_streams.push_row(stream);
    for (std::int32_t i = 0; i < n; ++i) {
        const auto next = (i + 1) % n;
        build.cell(VtkType::tetra, {below, low + i, low + next, build.point(0, 0, -1 - 0.001 * i)});
        build.cell(VtkType::tetra, {above, high + i, high + next, build.point(0, 0, 2 + 0.001 * i)});
        for (int k = 0; k < 2; ++k) build.mesh().face_streams.push_row(std::array<std::int32_t, 0>{});
    }
    return build.finish();
}

std::vector<NamedHub> hub_meshes()
{
    return {{"star_of_lines", star_of_lines},
            {"triangles_at_an_edge", triangles_at_an_edge},
            {"tetrahedra_at_a_face", tetrahedra_at_a_face},
            {"triangle_fan", triangle_fan},
            {"polygon_with_triangles", polygon_with_triangles},
            {"polyhedron_with_tetrahedra", polyhedron_with_tetrahedra}};
}

}  // namespace meshard
