// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/surface_search.h"
#include "ops/surface/winding_number.h"
#include "sharding/ranks/rank_group.h"

#include <array>
#include <cstdint>
#include <vector>

namespace meshard {

/// Nearest point of a surface to a query.
struct SurfaceNearest {
    double distance_squared = 0, distance = 0;  ///< `distance` is positive outside, negative inside
    /// Gradient of the distance, nearest point, and its weights of the triangle's corners.
    Vector3 direction{}, point{}, weights{};
    std::int64_t face = -1;  ///< -1 if none is within the distance
    std::array<std::int64_t, 3> corners{};
};

/// The sign is computed from the winding number if it is given, else from pseudonormals.
SurfaceNearest nearest_on_surface(const TriangleSurface& surface, const SurfaceSearch& search,
                                  const WindingNumber* winding, const Vector3& query, double max_distance);

/// One rank's triangles of a surface that is cut among ranks.
struct SurfacePart {
    std::vector<std::int64_t> face_ids;    ///< global ids
    std::vector<std::int64_t> corner_ids;  ///< (faces, 3), global ids of vertices
    std::vector<double> corners;           ///< (faces, 3, 3), coordinates of the corners
};

/// The nearest point of the whole surface for each of this rank's queries, (m, 3), with the sign by pseudonormals: the
/// same bits as on a surface that one rank holds. Face and corner ids of the results are global. Collective over
/// `group`.
///
/// No rank holds the whole surface: of other ranks' triangles it receives those that share a corner with its own, for
/// the normals. A query is searched among the own triangles first, then sent to the ranks whose bounding boxes may hold
/// a nearer one.
std::vector<SurfaceNearest> nearest_among_parts(SurfacePart part, const std::vector<double>& queries,
                                                double max_distance, const RankGroup& group);

}  // namespace meshard
