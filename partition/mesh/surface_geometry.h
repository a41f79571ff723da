// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

using Vector3 = std::array<double, 3>;

/// Area vector of each cell: as long as the cell's area, along its normal by the right-hand rule over its points. Zero
/// for cells that are no polygons (vertices, lines, solids).
///
/// For a polygon that is not plane it is the area vector of any surface spanned by its edges, so that the vectors of a
/// closed surface add up to zero.
std::vector<Vector3> area_vectors(const Mesh& mesh);

/// Centroid of each polygon's area; for other cells (and polygons without area) the mean of their points.
std::vector<Vector3> surface_centroids(const Mesh& mesh);

/// How the polygons of a mesh are connected. Points are the same only if their indices are.
struct SurfaceEdges {
    std::int64_t num_edges = 0;
    std::int64_t num_boundary = 0;      ///< edges of one polygon only
    std::int64_t num_non_manifold = 0;  ///< edges of three or more

    bool is_closed() const { return num_edges > 0 && num_boundary == 0; }
};

SurfaceEdges surface_edges(const Mesh& mesh);

/// Whether area vectors add up to nothing, to a millionth of the area, as those of all surfaces around volumes do. A surface whose edges are all of two
/// polygons or more and that has polygons twice, or within the volume, is closed, but its areas do not cancel: a constant pressure pushes it.
bool areas_cancel(std::span<const Vector3> areas);

/// Volume that the polygons enclose, by the divergence theorem: positive if their normals point out of it. Meaningful
/// for closed surfaces whose areas cancel only.
double enclosed_volume(const Mesh& mesh);

}  // namespace meshard
