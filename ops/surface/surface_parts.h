// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ops/surface/surface_nearest.h"
#include "sharding/ranks/rank_group.h"

namespace meshard {

/// One rank's triangles of a surface that is cut among ranks.
struct SurfacePart {
    std::vector<std::int64_t> face_ids;     ///< global
    std::vector<std::int64_t> corner_ids;   ///< (faces, 3), global ids of vertices
    std::vector<double> corners;            ///< (faces, 3, 3), their places
};

/// What each of this rank's queries, (m, 3), finds on the whole surface, sign by pseudonormals: the same bits as on a surface in one place. Faces and
/// corners of the results are global. Collective over `group`.
///
/// No rank holds the surface: of other ranks' triangles it sees those that share a corner with its own, for their normals. A query looks among the own
/// triangles first; then it goes to the ranks that published a box which may hold something nearer.
std::vector<SurfaceNearest> nearest_among_parts(SurfacePart part, const std::vector<double>& queries, double max_distance, const RankGroup& group);

}  // namespace meshard
