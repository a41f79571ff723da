// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// The direction of a surface's normals, by the right-hand rule over the points of its polygons: outward is out of the
/// body, into the fluid around it.
enum class Facing : std::uint8_t {
    Unknown,  ///< no polygons, or flat sheets, which have no inside
    Outward,
    Inward,
    Mixed
};

/// "unknown", "outward", "inward" or "mixed".
const char* to_string(Facing facing);

/// Areas of the polygons by the side to which their normals point.
struct SurfaceFacing {
    double outward = 0, inward = 0, unknown = 0;
    /// Whether every edge belongs to two polygons or more, where points at equal positions count as one.
    bool is_closed = false;

    /// The facing of nearly all of the area; a thousandth of it may point the other way.
    Facing facing() const;
};

/// Describes the result, e.g. `the surface is closed and its normals point inwards`.
std::string describe(const SurfaceFacing& found);

struct PolygonSides {
    /// For each cell: 1 if its normal points outward, -1 if inward, 0 if unknown or not a polygon.
    std::vector<std::int8_t> sides;
    bool is_closed = false;  ///< as in SurfaceFacing
};

/// Determines on which side of each polygon the outside is; no other code decides this. Points at equal positions count
/// as one, so that patches and triangles with their own points are connected. Polygons that are connected along edges
/// form groups with a consistent orientation. A closed group encloses a positive volume if it points outward; the inner
/// wall of a hollow body, which points into the hollow, counts as outward. An open group bulges outward, relative to
/// its centroid; one that is nearly flat is unknown. If a coordinate is not finite, all polygons are unknown.
PolygonSides polygon_sides(const Mesh& mesh);

/// The facing of the polygons, or of `normals` instead, an array of vectors of the mesh's cells or points, if it is
/// given.
SurfaceFacing surface_facing(const Mesh& mesh, const PolygonSides& sides, const DataArray* normals = nullptr);
SurfaceFacing surface_facing(const Mesh& mesh);

/// Reverses the points of polygons that point inward, and vectors of the cell and point arrays called `normals` that
/// do.
/// @return the number of polygons and of vectors reversed
/// @throws InvalidInput for strips of triangles and cells of orders above two, whose points cannot be reversed
std::int64_t turn_outward(Mesh& mesh, const PolygonSides& sides, const std::string& normals = {});

/// How polygons whose normals point inward are treated.
enum class Orient : std::uint8_t {
    AsIs,    ///< they are kept, with a warning
    Outward  ///< they are reversed
};

/// @throws InvalidInput for any other word
Orient parse_orient(const std::string& word);

/// Orients the polygons of a surface outward if requested, and returns the facing afterwards of the polygons or, if
/// there is one, of the array `normals` of cells or points. A mesh without polygons, or with solids, is not changed,
/// and its facing is unknown.
SurfaceFacing orient_surface(Mesh& mesh, Orient orient, const std::string& normals = {});

}  // namespace meshard
