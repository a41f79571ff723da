// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/surface_nearest.h"
#include "sharding/ranks/rank_group.h"

#include <cstdint>
#include <vector>

namespace meshard {

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
