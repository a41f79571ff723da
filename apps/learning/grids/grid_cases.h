// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/grids/grid_case.h"
#include "apps/learning/store/case_store.h"
#include "models/layers/normalizer.h"

#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// Cases of grids in memory.
struct LoadedGrids {
    std::vector<CaseTensors> examples;
    std::vector<StoredCase> known;  ///< numbers of rows and channels, statistics and bounds of each case; no files
    ChannelStatistics told;         ///< statistics of the inputs over all cases
};

/// Reads image data on every rank, each of which reads whole files and keeps its own block (`grid_layout`); so
/// statistics have the same bits on any number of ranks, without communication.
/// @throws IoError, InvalidInput naming the case, as `read_image`, `grid_rows` and `grid_layout`, and for a grid for
/// which the model's arguments differ from those for `like`, or else for the first grid
LoadedGrids load_grids(const std::vector<CaseSource>& sources, const TrainingRunConfig& config,
                       const std::shared_ptr<const DeviceMesh>& blocks,
                       const std::optional<CaseTensors>& like = std::nullopt);

/// Returns how many ranks cut each direction of the cases' grids: what the configuration says, or where it leaves it
/// open and the model reads neighbours, the cut with the least halo for the first case (`cut_of_least_halo`).
/// @throws IoError, InvalidInput naming the case, as `read_image` and `grid_rows`
std::vector<std::int64_t> domain_of_grids(const TrainingRunConfig& config, const CaseSource& first,
                                          std::int64_t num_ranks);

/// Returns the widths of a grid model that fits the cases. @param example   any of the cases
GridWidths grid_widths(const CaseTensors& example, const DataConfig& data);

}  // namespace meshard
