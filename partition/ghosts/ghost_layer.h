// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "partition/csr.h"
#include "partition/cut/partition.h"

namespace meshard {

/// Rows within `num_layers` steps of `part` along the edges of `graph`, without those that it owns.
struct GhostLayer {
    std::vector<std::int32_t> rows;        ///< ascending
    std::vector<std::uint8_t> levels;      ///< of each: 1 for a direct neighbour, ... num_layers
};

/// Ghosts of every part, index = part; the same on any number of threads, each of which takes 4 bytes a row.
/// @throws InvalidInput if sizes disagree or num_layers is outside [0, 255].
std::vector<GhostLayer> ghost_layers(const Csr& graph, const Partition& partition, std::int32_t num_layers,
                                     std::int32_t num_threads = 1);

/// Ghosts of one part.
GhostLayer ghost_layer(const Csr& graph, const Partition& partition, std::int32_t part, std::int32_t num_layers);

}  // namespace meshard
