// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/rolled_out_run.h"
#include "apps/learning/training/run_state.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace meshard {

/// Puts after each turn those of the steps of its run that an unrolled training step goes on to
/// (`TrainingData::num_unrolled`).
std::function<std::optional<CaseTurn>()> unrolled_turns(std::function<std::optional<CaseTurn>()> turns,
                                                        const TrainingData& data);

/// Takes the next `count` steps of a run, whose rows lie as those of the first. Collective as `ExampleSequence::next`.
/// @throws Error if the rows of a later step are others
std::vector<Example> next_steps(ExampleSequence& examples, std::int64_t count);

/// Rolls out all runs of a split. Data groups share them out. Collective.
std::vector<RolledOutRun> roll_out(Run& run, CaseSet RunCases::* split);

}  // namespace meshard
