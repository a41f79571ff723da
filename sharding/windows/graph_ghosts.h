// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_ghosts.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Marks the first ghost layer within one window: cells with neighbours of other owners. `outside` are the owners of
/// the graph's rows outside the window.
void add_first_ghosts(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners,
                      std::span<const std::int32_t> outside, std::vector<GhostMark>& marks);

/// Adds ghost layers 2 to `num_layers` by the same graph to the marks of the first. Collective.
/// @param owners   owners of this rank's cells
void spread_ghosts(const CurveWindows& windows, RankMessages& messages, const GraphOfWindow& graph_of,
                   std::span<const std::int32_t> owners, std::int32_t num_layers, std::vector<GhostMark>& marks);

/// The ghosts of all parts among the nearest neighbours by centroids, equal to those of `ghost_graph` with a number of
/// neighbours. Collective.
std::vector<GhostMark> ghosts_by_nearest(const CurveWindows& windows, RankMessages& messages,
                                         std::span<const std::int32_t> owners, std::int32_t num_nearest,
                                         std::int32_t num_layers);

}  // namespace meshard
