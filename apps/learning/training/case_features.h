// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/run_state.h"

#include <cstdint>
#include <filesystem>

namespace meshard {

/// Whether the features of the run's training cases are kept: of models of points that stand still, and at least
/// FeatureDistance::kFewestCases cases.
bool has_case_features(const Run& run);

/// Keeps what the last layer of the run's model is given of each training case (`keep_features`), if it
/// `has_case_features`. Collective.
/// @param checkpoint   which has the model's weights, beside which they are kept  @param num_steps   that it has made
void keep_case_features(Run& run, const std::filesystem::path& checkpoint, std::int64_t num_steps);

}  // namespace meshard
