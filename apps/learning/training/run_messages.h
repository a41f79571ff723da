// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/run_state.h"

namespace meshard {

/// Records and says what the run begins with, or goes on from: cases and their scales, what was found in the data, the
/// model, its ranks, and which settings have no effect here. Collective.
void say_start(Run& run);

/// Prints what a step would run (`training_plan`). Collective.
void print_plan(Run& run);

/// Records the bytes that a rank holds of parameters, gradients and optimiser state. Collective.
void record_memory(Run& run);

/// Says how long the run took and where it lies. @param first_step   done when this process began
void say_end(Run& run, std::int64_t first_step);

}  // namespace meshard
