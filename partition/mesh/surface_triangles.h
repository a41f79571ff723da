// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Triangles that span the polygons of a mesh, turned as these are.
struct SurfaceTriangles {
    std::vector<double> points;           ///< (n, 3): the points of the mesh, behind them the means of polygons
    std::vector<std::int64_t> triangles;  ///< (m, 3) indices of those points
};

/// Polygons of more than three corners become triangles between their edges and the mean of their corners, as everywhere in meshard, so that neither the
/// corner at which a polygon begins nor the way it is turned changes the surface. Triangles and strips stay as they are, other cells have none.
SurfaceTriangles surface_triangles(const Mesh& mesh);

}  // namespace meshard
