// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"
#include "sharding/windows/window_ghosts.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// The first layer within one window: cells whose neighbours in the graph have other owners. `outside` are the owners of its other rows.
void add_first_ghosts(const WindowGraph& graph, std::int64_t begin, std::span<const std::int32_t> owners, std::span<const std::int32_t> outside,
                      std::vector<GhostMark>& marks);

/// Collective. The layers from the second to the last, by the same graph, are added to the marks of the first.
/// @param owners of this rank's positions
void spread_ghosts(const CurveWindows& windows, RankMessages& messages, const GraphOfWindow& graph_of, std::span<const std::int32_t> owners,
                   std::int32_t num_layers, std::vector<GhostMark>& marks);

/// Collective. The ghosts of all parts among the nearest neighbours by centroids: those of `ghost_graph` with a number.
std::vector<GhostMark> ghosts_by_nearest(const CurveWindows& windows, RankMessages& messages, std::span<const std::int32_t> owners, std::int32_t num_nearest,
                                         std::int32_t num_layers);

}  // namespace meshard
