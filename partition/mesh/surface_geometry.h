// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

using Vector3 = std::array<double, 3>;

/// Returns the first cell that is a strip of triangles, or -1.
std::int64_t first_strip(const Mesh& mesh);

/// @param where   begins the message
/// @throws InvalidInput for a mesh with strips, each of which has one area vector for all its triangles
void require_single_polygons(const Mesh& mesh, const std::string& where = "The surface");

/// Sum of the areas of all polygons, and of the triangles of strips.
double surface_area(const Mesh& mesh);

/// Area vector of each cell: as long as the cell's area, along its normal by the right-hand rule over its points. Zero
/// for cells that are no polygons (vertices, lines, solids).
///
/// For a polygon that is not plane it is the area vector of any surface spanned by its edges, so that the vectors of a
/// closed surface add up to zero.
std::vector<Vector3> area_vectors(const Mesh& mesh);

/// Centroid of each polygon's area; for other cells, and polygons without area, the mean of their points.
std::vector<Vector3> surface_centroids(const Mesh& mesh);

/// How the polygons of a mesh are connected. Points are equal only if their indices are.
struct SurfaceEdges {
    std::int64_t num_edges = 0;
    std::int64_t num_boundary = 0;      ///< edges with one polygon only
    std::int64_t num_non_manifold = 0;  ///< edges with three polygons or more

    bool is_closed() const { return num_edges > 0 && num_boundary == 0; }
};

SurfaceEdges surface_edges(const Mesh& mesh);

/// Returns whether the sum of the area vectors is zero, up to a millionth of the area, as for all surfaces around
/// volumes. A surface on whose edges two polygons or more meet, but that has polygons twice, or within the volume, is
/// closed although its areas do not cancel: a constant pressure exerts a force on it.
bool areas_cancel(std::span<const Vector3> areas);

/// Volume that the polygons enclose, by the divergence theorem: positive if their normals point out of it. Meaningful
/// for closed surfaces whose areas cancel only.
double enclosed_volume(const Mesh& mesh);

}  // namespace meshard
