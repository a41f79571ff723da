// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// `row_weights` of the whole mesh for the cells at this rank's positions, (positions, names). Uses 8 bytes a cell
/// temporarily. Collective; must be called before `take_first_cells`.
/// @throws InvalidInput as `row_weights`
std::vector<std::int32_t> window_weights(const CurveWindows& windows, RankMessages& messages,
                                         std::span<const std::string> names);

}  // namespace meshard
