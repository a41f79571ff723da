// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_ghosts.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// The ghosts of all parts by distances between centroids, equal to those of `ghost_graph` with a radius, without
/// building that graph. Each window receives the rows of the previous layer within reach from the windows near it, and
/// searches them, part by part, for one within the radius of each of its own rows. Collective.
/// @param owners   owners of this rank's cells
/// @return marks of this rank's cells
std::vector<GhostMark> ghosts_by_radius(const CurveWindows& windows, RankMessages& messages,
                                        std::span<const std::int32_t> owners, double radius, std::int32_t num_layers);

}  // namespace meshard
