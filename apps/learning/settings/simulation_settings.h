// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"

namespace meshard {

/// Refuses settings that cases which are steps of simulations do not support (`data.series`), and names the arrays that
/// are learnt.
/// @throws UsageError naming the key
void complete_series(const Settings& settings, TrainingRunConfig& config);

/// Refuses settings of simulations where there are none. @throws UsageError naming the key
void refuse_keys_of_series(const Settings& settings);

}  // namespace meshard
