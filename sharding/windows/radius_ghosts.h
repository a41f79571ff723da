// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_ghosts.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Collective. The ghosts of all parts by distances between centroids: those of `ghost_graph` with a radius, without such a graph. A window gets from those
/// near it the rows of the layer before that lie within reach, and looks among them, part by part, for one within the radius of each of its own rows.
/// @param owners of this rank's positions
/// @return of this rank's rows
std::vector<GhostMark> ghosts_by_radius(const CurveWindows& windows, RankMessages& messages, std::span<const std::int32_t> owners, double radius,
                                        std::int32_t num_layers);

}  // namespace meshard
