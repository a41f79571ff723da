// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"
#include "partition/ghosts/ghost_graph.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// The ghosts of a part: rows of other parts within `num_layers` steps along the edges of the graph.
struct GhostLayer {
    std::vector<std::int32_t> rows;    ///< ascending
    std::vector<std::uint8_t> levels;  ///< level of each row: 1 for a direct neighbour, ... num_layers
};

/// The ghosts of every part, indexed by part. The result does not depend on the number of threads, each of which uses 4
/// bytes for each row of the graph.
/// @throws InvalidInput if sizes disagree or num_layers is outside [0, 255].
std::vector<GhostLayer> ghost_layers(const Csr& graph, const Partition& partition, std::int32_t num_layers,
                                     std::int32_t num_threads = 1);

/// `ghost_layers` for shared items, in time proportional to the items of rows, not to the pairs of rows.
std::vector<GhostLayer> ghost_layers(const GhostRelation& relation, const Partition& partition, std::int32_t num_layers,
                                     std::int32_t num_threads = 1);

/// Ghosts of one part.
GhostLayer ghost_layer(const Csr& graph, const Partition& partition, std::int32_t part, std::int32_t num_layers);

}  // namespace meshard
