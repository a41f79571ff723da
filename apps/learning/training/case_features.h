// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/run_state.h"

namespace meshard {

/// Keeps what the last layer of the run's best model is given of each training case (`keep_features`), for models of
/// points that stand still; of others, and of fewer than FeatureDistance::kFewestCases cases, nothing. The run's model
/// has the weights of the best checkpoint then. Collective.
void keep_case_features(Run& run);

}  // namespace meshard
