// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sample_meshes.h"

#include <array>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <random>
#include <utility>

namespace meshard {

namespace {

constexpr std::uint8_t vertex = 1, poly_vertex = 2, line = 3, poly_line = 4, triangle = 5, triangle_strip = 6,
                       polygon = 7, quad = 9, tetra = 10, hexahedron = 12, wedge = 13, pyramid = 14, polyhedron = 42;

void add_cell(Mesh& mesh, std::uint8_t type, std::initializer_list<std::int32_t> points)
{
    mesh.cells.push_row({points.begin(), points.size()});
    mesh.cell_types.push_back(type);
}

template <class T>
Mesh with_points(MeshKind kind, std::vector<T> coordinates)
{
    Mesh mesh;
    mesh.kind = kind;
    mesh.points = DataArray::from("Points", std::move(coordinates), 3);
    return mesh;
}

Mesh finished(Mesh mesh)
{
    add_sample_arrays(mesh);
    return mesh;
}

// Points of an n x n x n grid of boxes, x first.
std::vector<double> grid_points(std::int32_t n)
{
    std::vector<double> coordinates;
    for (std::int32_t k = 0; k <= n; ++k)
        for (std::int32_t j = 0; j <= n; ++j)
            for (std::int32_t i = 0; i <= n; ++i)
                for (const auto x : {i, j, k}) coordinates.push_back(static_cast<double>(x) / n);
    return coordinates;
}

// Calls f with the eight corners of each box of the grid, in a hexahedron's order.
template <class F>
void for_each_box(std::int32_t n, F&& f)
{
    const std::int32_t y = n + 1, z = y * y;
    for (std::int32_t k = 0; k < n; ++k)
        for (std::int32_t j = 0; j < n; ++j)
            for (std::int32_t i = 0; i < n; ++i) {
                const auto p = i + j * y + k * z;
                f(std::array{p, p + 1, p + 1 + y, p + y, p + z, p + 1 + z, p + 1 + y + z, p + y + z});
            }
}

std::vector<std::int32_t> box_faces(const std::array<std::int32_t, 8>& p)
{
    return {6, 4,    p[0], p[3], p[2], p[1], 4,    p[4], p[5], p[6], p[7], 4,    p[0], p[1], p[5], p[4],
            4, p[1], p[2], p[6], p[5], 4,    p[2], p[3], p[7], p[6], 4,    p[3], p[0], p[4], p[7]};
}

Mesh squares(std::int32_t pieces, std::int32_t n)
{
    std::vector<float> coordinates;
    auto mesh = with_points<float>(MeshKind::Surface, {});
    for (std::int32_t piece = 0; piece < pieces; ++piece) {
        const auto first = piece * 2 * (n + 1);
        for (std::int32_t i = 0; i <= n; ++i)
            for (const auto y : {0, 1})
                coordinates.insert(coordinates.end(), {static_cast<float>(i), static_cast<float>(y + 2 * piece), 0.0f});
        for (std::int32_t i = 0; i < n; ++i) {
            const auto p = first + 2 * i;
            add_cell(mesh, quad, {p, p + 2, p + 3, p + 1});
        }
    }
    mesh.points = DataArray::from("Points", std::move(coordinates), 3);
    return finished(std::move(mesh));
}

}  // namespace

Mesh exploded(const Mesh& mesh)
{
    Mesh result = mesh;
    std::vector<std::int32_t> sources, place(mesh.num_points());
    result.cells = {};
    result.face_streams = {};
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        std::vector<std::int32_t> row;
        for (const auto point : mesh.cells.row(cell)) {
            place[point] = static_cast<std::int32_t>(sources.size());
            row.push_back(place[point]);
            sources.push_back(point);
        }
        result.cells.push_row(row);
        if (!mesh.has_polyhedra()) continue;
        Csr stream;
        stream.push_row(mesh.face_streams.row(cell));
        if (stream.num_entries() > 0)
            for_each_face_point(stream, [&](std::int64_t, std::int32_t& point) { point = place[point]; });
        result.face_streams.push_row(stream.row(0));
    }
    result.points = mesh.points.gather(sources);
    for (auto& array : result.point_data) array = array.gather(sources);
    return result;
}

void add_sample_arrays(Mesh& mesh)
{
    std::vector<float> pressure;
    std::vector<double> velocity;
    for (std::int64_t i = 0; i < mesh.num_points(); ++i) {
        pressure.push_back(1.5f * static_cast<float>(i) - 7.0f);
        velocity.insert(velocity.end(), {0.1 * static_cast<double>(i), -1.0 / (1.0 + static_cast<double>(i)), 3.0});
    }
    auto velocity_array = DataArray::from("velocity", std::move(velocity), 3);
    velocity_array.component_names = {"x", "y", "z"};
    velocity_array.unit = "m/s";
    velocity_array.attribute = "Vectors";
    mesh.point_data = {DataArray::from("pressure", std::move(pressure)), std::move(velocity_array)};

    std::vector<std::int32_t> patch;
    std::vector<std::uint8_t> flag;
    std::vector<std::int64_t> label;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        patch.push_back(static_cast<std::int32_t>(i % 5) - 2);
        flag.push_back(static_cast<std::uint8_t>(i % 251));
        label.push_back(i + (std::int64_t{1} << 40));
    }
    auto patch_array = DataArray::from("patch", std::move(patch));
    patch_array.attribute = "Scalars";
    mesh.cell_data = {std::move(patch_array), DataArray::from("flag", std::move(flag)),
                      DataArray::from("label", std::move(label))};
    mesh.field_data = {DataArray::from("time", std::vector<double>{0.25}),
                       DataArray::from_strings("names", {"body", "ground"})};
}

Mesh two_triangles()
{
    auto mesh = with_points<float>(MeshKind::Surface, {0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0});
    add_cell(mesh, triangle, {0, 1, 2});
    add_cell(mesh, triangle, {0, 2, 3});
    return finished(std::move(mesh));
}

Mesh strip(std::int32_t n)
{
    return squares(1, n);
}

Mesh islands(std::int32_t pieces, std::int32_t n)
{
    return squares(pieces, n);
}

Mesh cube(std::int32_t n)
{
    auto mesh = with_points(MeshKind::Unstructured, grid_points(n));
    for_each_box(n,
                 [&](const auto& p) { add_cell(mesh, hexahedron, {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]}); });
    return finished(std::move(mesh));
}

Mesh polyhedral_cube(std::int32_t n)
{
    auto mesh = with_points(MeshKind::Unstructured, grid_points(n));
    for_each_box(n, [&](const auto& p) {
        add_cell(mesh, polyhedron, {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7]});
        mesh.face_streams.push_row(box_faces(p));
    });
    return finished(std::move(mesh));
}

Mesh tet_cube(std::int32_t n)
{
    auto mesh = with_points(MeshKind::Unstructured, grid_points(n));
    // Six tetrahedra around the diagonal 0-6, one for each way from 0 to 6 along the edges.
    for_each_box(n, [&](const auto& p) {
        for (const auto& [a, b] : {std::pair{1, 2}, {2, 3}, {3, 7}, {7, 4}, {4, 5}, {5, 1}})
            add_cell(mesh, tetra, {p[0], p[a], p[b], p[6]});
    });
    return finished(std::move(mesh));
}

Mesh mixed_cells()
{
    auto mesh = with_points<double>(MeshKind::Unstructured, {0, 0, 0, 1, 0, 0, 1,  1, 0,   0,   1, 0, 0,   0,   1, 1,
                                                             0, 1, 1, 1, 1, 0, 1,  1, 0.5, 0.5, 2, 2, 0.5, 1.5, 2, 0,
                                                             0, 2, 1, 0, 0, 0, -1, 1, 0,   -1,  1, 1, -1,  0,   1, -1});
    add_cell(mesh, hexahedron, {0, 1, 2, 3, 4, 5, 6, 7});
    add_cell(mesh, pyramid, {4, 5, 6, 7, 8});
    add_cell(mesh, tetra, {5, 6, 8, 9});
    add_cell(mesh, wedge, {1, 5, 10, 2, 6, 11});
    add_cell(mesh, polyhedron, {12, 13, 14, 15, 0, 1, 2, 3});
    add_cell(mesh, quad, {12, 13, 14, 15});
    for (std::int32_t cell = 0; cell < 6; ++cell)
        if (cell == 4)
            mesh.face_streams.push_row(box_faces({12, 13, 14, 15, 0, 1, 2, 3}));
        else
            mesh.face_streams.push_row({});
    return finished(std::move(mesh));
}

Mesh surface_of_all_kinds()
{
    std::vector<float> coordinates;
    for (std::int32_t i = 0; i < 12; ++i)
        coordinates.insert(coordinates.end(),
                           {static_cast<float>(i / 2), static_cast<float>(i % 2), 0.5f * static_cast<float>(i % 3)});
    auto mesh = with_points(MeshKind::Surface, std::move(coordinates));
    add_cell(mesh, vertex, {0});
    add_cell(mesh, poly_vertex, {1, 3});
    add_cell(mesh, line, {0, 1});
    add_cell(mesh, poly_line, {1, 3, 5});
    add_cell(mesh, triangle, {0, 2, 1});
    add_cell(mesh, quad, {2, 4, 3, 1});
    add_cell(mesh, polygon, {4, 6, 7, 5, 3});
    add_cell(mesh, triangle_strip, {6, 7, 8, 9, 10});
    return finished(std::move(mesh));
}

Mesh sphere(std::int32_t n)
{
    const auto around = 2 * n;
    std::vector<float> coordinates{0, 0, 1};
    for (std::int32_t ring = 1; ring < n; ++ring)
        for (std::int32_t i = 0; i < around; ++i) {
            const auto polar = std::numbers::pi * ring / n;
            const auto angle = 2 * std::numbers::pi * i / around;
            for (const auto x : {std::sin(polar) * std::cos(angle), std::sin(polar) * std::sin(angle), std::cos(polar)})
                coordinates.push_back(static_cast<float>(x));
        }
    coordinates.insert(coordinates.end(), {0, 0, -1});
    const auto south = static_cast<std::int32_t>(coordinates.size() / 3) - 1;
    auto mesh = with_points(MeshKind::Surface, std::move(coordinates));
    const auto at = [&](std::int32_t ring, std::int32_t i) { return 1 + (ring - 1) * around + i % around; };
    for (std::int32_t i = 0; i < around; ++i) add_cell(mesh, triangle, {0, at(1, i), at(1, i + 1)});
    for (std::int32_t ring = 1; ring + 1 < n; ++ring)
        for (std::int32_t i = 0; i < around; ++i) {
            add_cell(mesh, triangle, {at(ring, i), at(ring + 1, i), at(ring + 1, i + 1)});
            add_cell(mesh, triangle, {at(ring, i), at(ring + 1, i + 1), at(ring, i + 1)});
        }
    for (std::int32_t i = 0; i < around; ++i) add_cell(mesh, triangle, {at(n - 1, i), south, at(n - 1, i + 1)});
    return finished(std::move(mesh));
}

Mesh polygon_surface()
{
    std::vector<float> coordinates;
    for (const auto z : {0.0f, 1.0f})
        for (std::int32_t i = 0; i < 6; ++i) {
            const auto angle = std::numbers::pi_v<float> * static_cast<float>(i) / 3;
            coordinates.insert(coordinates.end(), {std::cos(angle), std::sin(angle), z});
        }
    auto mesh = with_points(MeshKind::Surface, std::move(coordinates));
    add_cell(mesh, polygon, {5, 4, 3, 2, 1, 0});
    for (std::int32_t i = 0; i < 6; ++i) add_cell(mesh, quad, {i, (i + 1) % 6, (i + 1) % 6 + 6, i + 6});
    add_cell(mesh, polygon, {6, 7, 8, 9, 10, 11});
    return finished(std::move(mesh));
}

Mesh with_hole()
{
    std::vector<float> coordinates;
    for (std::int32_t p = 0; p < 16; ++p)
        coordinates.insert(coordinates.end(), {static_cast<float>(p % 4), static_cast<float>(p / 4), 0.0f});
    auto mesh = with_points(MeshKind::Surface, std::move(coordinates));
    for (std::int32_t j = 0; j < 3; ++j)
        for (std::int32_t i = 0; i < 3; ++i) {
            const auto p = i + 4 * j;
            if (i != 1 || j != 1) add_cell(mesh, quad, {p, p + 1, p + 5, p + 4});
        }
    return finished(std::move(mesh));
}

Mesh with_unused_points()
{
    auto mesh = with_points<float>(MeshKind::Unstructured,
                                   {9, 9, 9, 0, 0, 0, 1, 0, 0, 8, 8, 8, 1, 1, 0, 0, 1, 0, 7, 7, 7, 6, 6, 6, 5, 5, 5});
    add_cell(mesh, triangle, {1, 2, 4});
    add_cell(mesh, triangle, {1, 4, 5});
    return finished(std::move(mesh));
}

Mesh random_cloud(std::int32_t n, std::uint32_t seed)
{
    std::mt19937 engine(seed);
    std::vector<float> coordinates(3 * static_cast<std::size_t>(n));
    for (auto& x : coordinates) x = static_cast<float>(engine() >> 8) / static_cast<float>(1 << 24);  // same everywhere
    return finished(with_points(MeshKind::Surface, std::move(coordinates)));
}

Mesh vertex_cells(std::int32_t n)
{
    auto mesh = random_cloud(n, 5);
    for (std::int32_t i = 0; i < n; ++i) add_cell(mesh, vertex, {i});
    return finished(std::move(mesh));
}

Mesh empty_mesh()
{
    return finished(with_points<float>(MeshKind::Unstructured, {}));
}

std::vector<NamedMesh> sample_meshes()
{
    return {{"two_triangles", two_triangles()},
            {"strip", strip(8)},
            {"cube", cube(3)},
            {"polyhedral_cube", polyhedral_cube(3)},
            {"tet_cube", tet_cube(2)},
            {"mixed_cells", mixed_cells()},
            {"surface_of_all_kinds", surface_of_all_kinds()},
            {"sphere", sphere(5)},
            {"polygon_surface", polygon_surface()},
            {"with_hole", with_hole()},
            {"islands", islands(3, 4)},
            {"with_unused_points", with_unused_points()},
            {"random_cloud", random_cloud(40, 1)},
            {"vertex_cells", vertex_cells(12)},
            {"empty_mesh", empty_mesh()}};
}

}  // namespace meshard
