// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/ghosts/ghost_graph.h"
#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// A cell of this rank that is a ghost of a part.
struct GhostMark {
    std::int32_t position, part, level;

    auto operator<=>(const GhostMark&) const = default;
};

/// The ghosts of all parts by common points or edges, equal to those of `ghost_graph` of the whole mesh, without
/// building that graph. In each layer only the points and edges at which parts meet are examined. Collective.
/// @param owners   owners of this rank's cells
/// @return marks of this rank's cells
std::vector<GhostMark> ghosts_by_points_or_edges(const CurveWindows& windows, RankMessages& messages,
                                                 std::span<const std::int32_t> owners, GhostNeighbors neighbors,
                                                 std::int32_t num_layers);

}  // namespace meshard
