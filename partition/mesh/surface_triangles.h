// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Triangles that span the polygons of a mesh, with their orientation.
struct SurfaceTriangles {
    std::vector<double> points;           ///< (n, 3): the points of the mesh, then the means of polygons
    std::vector<std::int64_t> triangles;  ///< (m, 3): indices of those points
};

/// Divides polygons of more than three corners into triangles between their edges and the mean of their corners, as
/// everywhere in meshard, so that the surface depends neither on the first corner of a polygon nor on its orientation;
/// a concave polygon that these triangles would leave is divided by `cut_ears`. Triangles and strips stay as they are;
/// other cells have no triangles.
SurfaceTriangles surface_triangles(const Mesh& mesh);

/// Whether the triangles between `apex` and the edges of a polygon are all oriented as the polygon is, so that they
/// cover it and no more.
bool is_fan(std::span<const Vector3> corners, const Vector3& apex);

/// Divides a polygon, which may be concave and need not be plane, into triangles of its corners, with its orientation,
/// by cutting off one ear after the other (G. H. Meisters, Polygons have ears, American Mathematical Monthly 82, 1975).
/// @return the corners of each triangle by number; none if the polygon crosses itself
std::vector<std::array<std::int32_t, 3>> cut_ears(std::span<const Vector3> corners);

}  // namespace meshard
