// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/cell_type.h"

#include <array>

namespace meshard {

namespace {

constexpr std::array<CellType, 256> make_cell_types()
{
    using enum CellShape;
    std::array<CellType, 256> types;
    const auto fixed = [&](int number, std::string_view name, int dimension, CellShape shape, int num_points) {
        types[number] = {name, static_cast<std::int8_t>(dimension), shape, static_cast<std::int8_t>(num_points), true};
    };
    const auto any = [&](int number, std::string_view name, int dimension, CellShape shape, int min_points) {
        types[number] = {name, static_cast<std::int8_t>(dimension), shape, static_cast<std::int8_t>(min_points), false};
    };
    any(0, "empty_cell", -1, None, 0);
    fixed(1, "vertex", 0, Points, 1);
    any(2, "poly_vertex", 0, Points, 0);
    fixed(3, "line", 1, Line, 2);
    any(4, "poly_line", 1, Polyline, 0);
    fixed(5, "triangle", 2, Triangle, 3);
    any(6, "triangle_strip", 2, Strip, 0);
    any(7, "polygon", 2, Polygon, 0);
    fixed(8, "pixel", 2, Pixel, 4);
    fixed(9, "quad", 2, Quad, 4);
    fixed(10, "tetra", 3, Tetra, 4);
    fixed(11, "voxel", 3, Voxel, 8);
    fixed(12, "hexahedron", 3, Hexahedron, 8);
    fixed(13, "wedge", 3, Wedge, 6);
    fixed(14, "pyramid", 3, Pyramid, 5);
    fixed(15, "pentagonal_prism", 3, PentagonalPrism, 10);
    fixed(16, "hexagonal_prism", 3, HexagonalPrism, 12);
    fixed(21, "quadratic_edge", 1, Line, 3);
    fixed(22, "quadratic_triangle", 2, Triangle, 6);
    fixed(23, "quadratic_quad", 2, Quad, 8);
    fixed(24, "quadratic_tetra", 3, Tetra, 10);
    fixed(25, "quadratic_hexahedron", 3, Hexahedron, 20);
    fixed(26, "quadratic_wedge", 3, Wedge, 15);
    fixed(27, "quadratic_pyramid", 3, Pyramid, 13);
    fixed(28, "biquadratic_quad", 2, Quad, 9);
    fixed(29, "triquadratic_hexahedron", 3, Hexahedron, 27);
    fixed(30, "quadratic_linear_quad", 2, Quad, 6);
    fixed(31, "quadratic_linear_wedge", 3, Wedge, 12);
    fixed(32, "biquadratic_quadratic_wedge", 3, Wedge, 18);
    fixed(33, "biquadratic_quadratic_hexahedron", 3, Hexahedron, 24);
    fixed(34, "biquadratic_triangle", 2, Triangle, 7);
    fixed(35, "cubic_line", 1, Line, 4);
    any(36, "quadratic_polygon", 2, QuadraticPolygon, 0);
    fixed(37, "triquadratic_pyramid", 3, Pyramid, 19);
    any(41, "convex_point_set", 3, Hull, 0);
    any(42, "polyhedron", 3, Polyhedron, 0);
    // VTK defines numbers but no classes for these types: the order of their points is not defined.
    any(51, "parametric_curve", 1, Unknown, 0);
    any(52, "parametric_surface", 2, Unknown, 0);
    any(53, "parametric_tri_surface", 2, Unknown, 0);
    any(54, "parametric_quad_surface", 2, Unknown, 0);
    any(55, "parametric_tetra_region", 3, Unknown, 0);
    any(56, "parametric_hex_region", 3, Unknown, 0);
    any(60, "higher_order_edge", 1, Line, 2);
    any(61, "higher_order_triangle", 2, Triangle, 3);
    any(62, "higher_order_quad", 2, Quad, 4);
    any(63, "higher_order_polygon", 2, Unknown, 0);
    any(64, "higher_order_tetrahedron", 3, Tetra, 4);
    any(65, "higher_order_wedge", 3, Wedge, 6);
    any(66, "higher_order_pyramid", 3, Pyramid, 5);
    any(67, "higher_order_hexahedron", 3, Hexahedron, 8);
    any(68, "lagrange_curve", 1, Line, 2);
    any(69, "lagrange_triangle", 2, Triangle, 3);
    any(70, "lagrange_quadrilateral", 2, Quad, 4);
    any(71, "lagrange_tetrahedron", 3, Tetra, 4);
    any(72, "lagrange_hexahedron", 3, Hexahedron, 8);
    any(73, "lagrange_wedge", 3, Wedge, 6);
    any(74, "lagrange_pyramid", 3, Pyramid, 5);
    any(75, "bezier_curve", 1, Line, 2);
    any(76, "bezier_triangle", 2, Triangle, 3);
    any(77, "bezier_quadrilateral", 2, Quad, 4);
    any(78, "bezier_tetrahedron", 3, Tetra, 4);
    any(79, "bezier_hexahedron", 3, Hexahedron, 8);
    any(80, "bezier_wedge", 3, Wedge, 6);
    any(81, "bezier_pyramid", 3, Pyramid, 5);
    return types;
}

constexpr auto cell_types = make_cell_types();

using Face = std::span<const std::uint8_t>;

template <std::size_t n>
struct Corners {
    std::uint8_t at[n];
    constexpr operator Face() const { return {at, n}; }
};

constexpr Corners<3> tetra[] = {{0, 1, 2}, {0, 1, 3}, {1, 2, 3}, {0, 2, 3}};
constexpr Corners<4> voxel[] = {{0, 2, 6, 4}, {1, 3, 7, 5}, {0, 1, 5, 4}, {2, 3, 7, 6}, {0, 1, 3, 2}, {4, 5, 7, 6}};
constexpr Corners<4> hexahedron[] = {{0, 3, 7, 4}, {1, 2, 6, 5}, {0, 1, 5, 4},
                                     {3, 2, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}};
// For wedge and pyramid.
constexpr Corners<3> triangles[] = {{0, 1, 2}, {3, 4, 5}, {0, 1, 4}, {1, 2, 4}, {2, 3, 4}, {3, 0, 4}};
constexpr Corners<4> wedge_quads[] = {{0, 1, 4, 3}, {1, 2, 5, 4}, {2, 0, 3, 5}};
constexpr Corners<4> pyramid_base = {0, 1, 2, 3};
constexpr Corners<5> pentagons[] = {{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}};
constexpr Corners<4> pentagonal_quads[] = {{0, 1, 6, 5}, {1, 2, 7, 6}, {2, 3, 8, 7}, {3, 4, 9, 8}, {4, 0, 5, 9}};
constexpr Corners<6> hexagons[] = {{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}};
constexpr Corners<4> hexagonal_quads[] = {{0, 1, 7, 6},  {1, 2, 8, 7},   {2, 3, 9, 8},
                                          {3, 4, 10, 9}, {4, 5, 11, 10}, {5, 0, 6, 11}};

constexpr Face tetra_faces[] = {tetra[0], tetra[1], tetra[2], tetra[3]};
constexpr Face voxel_faces[] = {voxel[0], voxel[1], voxel[2], voxel[3], voxel[4], voxel[5]};
constexpr Face hexahedron_faces[] = {hexahedron[0], hexahedron[1], hexahedron[2],
                                     hexahedron[3], hexahedron[4], hexahedron[5]};
constexpr Face wedge_faces[] = {triangles[0], triangles[1], wedge_quads[0], wedge_quads[1], wedge_quads[2]};
constexpr Face pyramid_faces[] = {pyramid_base, triangles[2], triangles[3], triangles[4], triangles[5]};
constexpr Face pentagonal_prism_faces[] = {pentagons[0],        pentagons[1],        pentagonal_quads[0],
                                           pentagonal_quads[1], pentagonal_quads[2], pentagonal_quads[3],
                                           pentagonal_quads[4]};
constexpr Face hexagonal_prism_faces[] = {hexagons[0],        hexagons[1],        hexagonal_quads[0],
                                          hexagonal_quads[1], hexagonal_quads[2], hexagonal_quads[3],
                                          hexagonal_quads[4], hexagonal_quads[5]};

}  // namespace

const CellType& cell_type_of(std::uint8_t cell_type)
{
    return cell_types[cell_type];
}

std::span<const std::span<const std::uint8_t>> solid_faces(CellShape shape)
{
    switch (shape) {
    case CellShape::Tetra:
        return tetra_faces;
    case CellShape::Voxel:
        return voxel_faces;
    case CellShape::Hexahedron:
        return hexahedron_faces;
    case CellShape::Wedge:
        return wedge_faces;
    case CellShape::Pyramid:
        return pyramid_faces;
    case CellShape::PentagonalPrism:
        return pentagonal_prism_faces;
    case CellShape::HexagonalPrism:
        return hexagonal_prism_faces;
    default:
        return {};
    }
}

}  // namespace meshard
