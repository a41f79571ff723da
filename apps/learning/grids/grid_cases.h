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

/// Cases that lie in memory, with what is known of each.
struct LoadedGrids {
    std::vector<CaseTensors> examples;
    std::vector<StoredCase> known;  ///< numbers of rows and channels, statistics and bounds; no files
    ChannelStatistics told;         ///< of what the model is told, over all of them
};

/// Reads image data whole on every rank, each of which keeps its rows; so statistics are the same bits on any number of ranks, without a message.
/// @throws IoError, InvalidInput naming the case, as `read_image` and `grid_rows`, and for a grid of which the model's arguments would be others than of
///         `like`, or without it of the first of these
LoadedGrids load_grids(const std::vector<CaseSource>& sources, const TrainingRunConfig& config, const std::shared_ptr<const DeviceMesh>& domain,
                       const std::optional<CaseTensors>& like = std::nullopt);

/// What the cases say of their model. @param example   any of them
GridWidths grid_widths(const CaseTensors& example, const DataConfig& data);

}  // namespace meshard
