// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

struct WindowCutOptions {
    std::int32_t num_parts = 1;
    double imbalance = 1.03;
    std::uint64_t seed = 0;
    std::string method = "metis";  ///< a name as in `partition_methods`
    /// In place of a method: the part of each of this rank's cells by their number in the file (`CurveWindows::cells`).
    const std::vector<std::int32_t>* given = nullptr;
    bool improve_given = false;             ///< mends what was given: parts above the bound, and if whole ones are asked for those in pieces
    std::vector<std::int32_t> levels = {};  ///< as in `CutOptions`
    bool contiguous = false;                ///< parts in one piece, as far as mesh and balance allow
    bool thorough = false;                  ///< smaller blocks and longer searches: several times as long
    double ghost_share = 0.35;              ///< as in `RefinementOptions`
    std::vector<std::string> weights = {};  ///< names as in `row_weights`; none: each cell weighs one
    std::vector<double> capacities = {};    ///< one a part, or none
    std::int64_t most_blocks = 2'000'000;   ///< rows of the graph that rank 0 cuts
};

/// Collective. Cuts the graph of blocks, which are small connected clusters of cells of a window (`cluster_rows`): an edge weighs the faces that two blocks
/// share, a block what its cells weigh. `cut_rows` cuts it on rank 0, in levels and in whole parts if asked for; `auto` takes the fewer faces.
/// @param weights of this rank's positions, (positions, num_weights), or none
/// @param start owners of this rank's positions, from which no method cuts but `repair_partition` goes on: then all cells of a block have one owner; or none
/// @return owners of this rank's positions
std::vector<std::int32_t> cut_blocks(const CurveWindows& windows, RankMessages& messages, const WindowCutOptions& options,
                                     std::span<const std::int32_t> weights, std::int32_t num_weights, std::span<const std::int32_t> start = {});

}  // namespace meshard
