// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/devices/device_load.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Bytes that a training step of a model takes of a GPU in each memory mode, by count, the fastest mode first; empty for a model whose work is not counted.
/// @param arguments         of its constructor  @param num_inputs, num_outputs   channels
/// @param points   of a rank  @param bytes_per_number  of what goes from operator to operator
std::vector<ModeNeed> counted_modes(const std::string& name, const nlohmann::json& arguments, std::int64_t num_inputs, std::int64_t num_outputs,
                                    std::int64_t num_ranks, double points, double bytes_per_number);

}  // namespace meshard
