// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "partition/mesh/mesh.h"
#include "partition/cut/partition.h"

namespace meshard {

/// Position of a point of the unit cube along the Hilbert curve of 2^21 steps a side (Skilling 2004); coordinates outside [0, 1] count as
/// the nearest inside.
std::uint64_t hilbert_index(std::array<double, 3> point);

/// The same parts with other numbers: in the order in which a Hilbert curve through the mesh's bounding box meets their centres (the mean of
/// the points that their rows use), so that consecutive parts lie together and a rank that takes a run of them holds a compact piece. Empty
/// parts come last. Ties keep their order.
/// @throws InvalidInput if the partition is not one of the mesh's rows.
Partition number_parts_along_curve(const Mesh& mesh, Partition partition);

}  // namespace meshard
