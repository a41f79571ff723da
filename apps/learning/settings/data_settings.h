// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"

#include <optional>

namespace meshard {

/// Checks the settings of the cases and completes those that follow from others. @throws UsageError naming the key
void complete_data(const Settings& settings, TrainingRunConfig& config);

/// Returns the volume's settings of cases whose surface is `surface`, or nothing if cases have one part.
/// @throws UsageError naming the key
std::optional<DataConfig> volume_config(const Settings& settings, const DataConfig& surface);

}  // namespace meshard
