// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/windows/curve_windows.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Collective, while the windows have their `first_cells`. `row_weights` of the whole mesh, for the cells at this rank's positions:
/// (positions, names). Memory: 8 bytes a cell for a moment.
/// @throws InvalidInput as `row_weights`
std::vector<std::int32_t> window_weights(const CurveWindows& windows, RankMessages& messages, std::span<const std::string> names);

}  // namespace meshard
