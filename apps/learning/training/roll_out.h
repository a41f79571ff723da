// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/run_state.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Puts after each turn those of the steps of its run that an unrolled training step goes on to
/// (`TrainingData::num_unrolled`).
std::function<std::optional<CaseTurn>()> unrolled_turns(std::function<std::optional<CaseTurn>()> turns,
                                                        const TrainingData& data);

/// Takes the next `count` steps of a run, whose rows lie as those of the first. Collective as `ExampleSequence::next`.
/// @throws Error if the rows of a later step are others
std::vector<Example> next_steps(ExampleSequence& examples, std::int64_t count);

/// Errors of states that were predicted one from the other, from the first states of a run on.
struct RolledOutRun {
    std::string run;
    std::vector<double> times;  ///< of the predicted states
    /// For each predicted state the relative L2 errors of the fields: of the prediction, of the first state, which a
    /// model must beat (persistence), and of the training cases' mean.
    std::vector<std::vector<double>> errors, of_persistence, of_mean;
};

/// Rolls out all runs of a split. Data groups share them out. Collective.
std::vector<RolledOutRun> roll_out(Run& run, CaseSet RunCases::* split);

/// The mean of a kind of errors over runs, states and fields, or one field. @param kind   e.g. `&RolledOutRun::errors`
double mean_error(const std::vector<RolledOutRun>& runs, std::vector<std::vector<double>> RolledOutRun::* kind,
                  std::optional<std::size_t> field = std::nullopt);

/// {"steps": of the longest run, "rel_l2": {field: mean over states and runs}, "persistence": {...}, "mean": {...}}
nlohmann::ordered_json roll_out_json(const std::vector<RolledOutRun>& runs, const std::vector<FieldConfig>& fields);

/// A table with a line a run, state and field: run, step, time, field, rel_l2, persistence, mean.
std::string roll_out_csv(const std::vector<RolledOutRun>& runs, const std::vector<FieldConfig>& fields);

}  // namespace meshard
