// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Triangles that span the polygons of a mesh, with their orientation.
struct SurfaceTriangles {
    std::vector<double> points;           ///< (n, 3): the points of the mesh, then the means of polygons
    std::vector<std::int64_t> triangles;  ///< (m, 3): indices of those points
};

/// Divides polygons of more than three corners into triangles between their edges and the mean of their corners, as
/// everywhere in meshard, so that the surface depends neither on the first corner of a polygon nor on its orientation.
/// Triangles and strips stay as they are; other cells have no triangles.
SurfaceTriangles surface_triangles(const Mesh& mesh);

}  // namespace meshard
