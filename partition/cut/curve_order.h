// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/partition.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>

namespace meshard {

/// Position of a point of the unit cube along the Hilbert curve with 2^21 cells a side (Skilling 2004); coordinates are
/// clamped to [0, 1].
std::uint64_t hilbert_index(std::array<double, 3> point);

/// Renumbers the parts in the order of their centroids (the mean of the points that their rows use) along a Hilbert
/// curve through the mesh's bounding box, so that consecutive parts are near each other and a rank that takes a run of
/// them holds a compact piece. Empty parts come last. Ties keep their order.
/// @throws InvalidInput if the partition is not one of the mesh's rows.
Partition number_parts_along_curve(const Mesh& mesh, Partition partition);

}  // namespace meshard
