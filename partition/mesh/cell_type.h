// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace meshard {

/// How the facets of a cell follow from its corners. Cells of any order share the shape of their corners.
enum class CellShape : std::uint8_t {
    None,              ///< empty cell
    Points,            ///< separate points
    Line,              ///< the first two points are the ends
    Polyline,          ///< the first and the last point are the ends
    Triangle,          ///< ring of the first three points
    Quad,              ///< ring of the first four points
    Pixel,             ///< ring 0 1 3 2
    Polygon,           ///< ring of all points
    QuadraticPolygon,  ///< ring of the first half of the points
    Strip,             ///< triangles of three points in a row
    Tetra,
    Voxel,
    Hexahedron,
    Wedge,
    Pyramid,
    PentagonalPrism,
    HexagonalPrism,
    Hull,        ///< convex hull of the points
    Polyhedron,  ///< faces as listed in the face stream
    Unknown
};

inline constexpr std::uint8_t kPolyhedron = 42;  ///< VTK's number

/// Properties of one of VTK's cell types.
struct CellType {
    std::string_view name;  ///< VTK's, in lower case; empty for numbers that VTK does not use
    std::int8_t dimension = -1;
    CellShape shape = CellShape::Unknown;
    std::int8_t min_points = 0;  ///< smallest number of points of such a cell
    bool fixed_size = false;     ///< has exactly `min_points`

    /// Returns whether VTK has the type, and its cells may have this number of points.
    bool fits(std::int64_t num_points) const
    {
        return !name.empty() && num_points >= min_points && !(fixed_size && num_points > min_points);
    }
};

const CellType& cell_type_of(std::uint8_t cell_type);

/// Faces of a solid shape by the positions of their corners in the cell; empty for shapes whose faces depend on the
/// cell.
std::span<const std::span<const std::uint8_t>> solid_faces(CellShape shape);

}  // namespace meshard
