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
    /// The part of each of this rank's cells, by number in the file (`CurveWindows::cells`); used instead of a method.
    const std::vector<std::int32_t>* given = nullptr;
    /// Repair the given partition: parts above the bound, and with `contiguous` parts in several pieces.
    bool repair_given = false;
    std::vector<std::int32_t> levels = {};  ///< as in `CutOptions`
    bool contiguous = false;                ///< connected parts, as far as mesh and balance allow
    bool thorough = false;                  ///< smaller blocks and longer searches; takes several times as long
    double ghost_share = 0.35;              ///< as in `RefinementOptions`
    std::vector<std::string> weights = {};  ///< names as in `row_weights`; empty: each cell weighs one
    std::vector<double> capacities = {};    ///< one for each part, or empty
    std::int64_t most_blocks = 2'000'000;   ///< largest number of blocks in the graph that rank 0 cuts
};

/// Cuts the graph of blocks, small connected clusters of a window's cells (`cluster_rows`): the weight of an edge is
/// the number of faces that two blocks share, that of a block the sum of its cells' weights. `cut_rows` cuts the graph
/// on rank 0, in levels and with connected parts if asked for; `auto` takes the method that cuts fewer faces.
/// Collective.
/// @param weights   weights of this rank's cells, (positions, num_weights), or empty
/// @param start     owners of this rank's cells, to be improved by `repair_partition` instead of a new cut: all cells
///                  of a block then have one owner; or empty
/// @return owners of this rank's cells
std::vector<std::int32_t> cut_blocks(const CurveWindows& windows, RankMessages& messages,
                                     const WindowCutOptions& options, std::span<const std::int32_t> weights,
                                     std::int32_t num_weights, std::span<const std::int32_t> start = {});

}  // namespace meshard
