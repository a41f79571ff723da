// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/run_state.h"

#include <cstdint>
#include <filesystem>

namespace meshard {

/// Keeps what the last layer of the run's best model is given of each training case (`keep_features`), for models of
/// points that stand still; of others, and of fewer than FeatureDistance::kFewestCases cases, nothing. Collective.
/// @param checkpoint   that the run's model has loaded, beside which they are kept  @param num_steps   that it has made
void keep_case_features(Run& run, const std::filesystem::path& checkpoint, std::int64_t num_steps);

}  // namespace meshard
