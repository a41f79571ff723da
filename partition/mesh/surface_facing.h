// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Which way the normals of a surface point, by the right-hand rule over the points of its polygons: outward is out of the body, into the fluid around it.
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
    bool is_closed = false;  ///< every edge belongs to two polygons or more, where points at one place count as one

    /// A thousandth of the area may point the other way.
    Facing facing() const;
};

/// What was found, e.g. `the surface is closed and its normals point inwards`.
std::string describe(const SurfaceFacing& found);

struct PolygonSides {
    std::vector<std::int8_t> sides;  ///< of each cell: 1 if its normal points outward, -1 if inward, 0 if unknown or no polygon
    bool is_closed = false;          ///< as of SurfaceFacing
};

/// The one place that tells outside from inside. Points at the same place count as one, so that patches and triangles with points of their own are joined.
/// Polygons that are joined along edges form groups, in which all are turned alike. A closed group encloses a positive volume, seen from outside; the inner
/// wall of a hollow body, which points into the hollow, counts as outward. An open group bulges outward, as seen from its centroid; one that is nearly flat
/// is unknown. Coordinates that are not finite leave all unknown.
PolygonSides polygon_sides(const Mesh& mesh);

/// The facing of the polygons, or of `normals` instead, an array of vectors of the mesh's cells or points, if it is given.
SurfaceFacing surface_facing(const Mesh& mesh, const PolygonSides& sides, const DataArray* normals = nullptr);
SurfaceFacing surface_facing(const Mesh& mesh);

/// Reverses the points of polygons that point inward, and vectors of the cell and point arrays called `normals` that do.
/// @return the number of polygons and of vectors turned
/// @throws InvalidInput for strips of triangles and cells of orders above two, whose points cannot be reversed
std::int64_t turn_outward(Mesh& mesh, const PolygonSides& sides, const std::string& normals = {});

/// What is done with polygons whose normals point inward.
enum class Orient : std::uint8_t {
    AsIs,    ///< they stay, and a warning tells of them
    Outward  ///< they are turned
};

/// @throws InvalidInput for other words than those
Orient parse_orient(const std::string& word);

/// Turns the polygons of a surface outward if asked, and tells how they, or the vectors of the array `normals` of cells or points where there is one, face
/// afterwards. A mesh without polygons, or with solids, stays as it is, and is unknown.
SurfaceFacing orient_surface(Mesh& mesh, Orient orient, const std::string& normals = {});

}  // namespace meshard
