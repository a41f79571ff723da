// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/sweep/sweep_plan.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// What a run of `train` has come to: the numbers of its last validation.
struct RunResult {
    double error = 0;                  ///< mean of the fields' rel_l2
    double best_error = 0;             ///< least of all its validations
    std::optional<double> drag_error;  ///< mae of Cd, by the table where it has one
    double loss = 0;                   ///< of the last epoch of training
    double seconds = 0;                ///< in steps
};

/// From metrics.jsonl of a run's folder; nothing if the run has not come to its end.
std::optional<RunResult> result_of(const std::filesystem::path& run);

/// A run of the sweep and its state.
struct SweptRun {
    SweepRun run;
    std::optional<RunResult> result;
    std::string state = "waiting";  ///< done, failed, stopped, waiting
};

/// All numbers: {format, version, runs: [{name, point, fold, seed, state, rel_l2, ...}], points: [{point, n, rel_l2: {mean, spread}, ...}]}. The spread is the
/// standard deviation (of n - 1) over folds and seeds, null for one run.
nlohmann::ordered_json sweep_json(std::span<const SweptRun> runs);

/// A line a run.
std::string sweep_csv(std::span<const SweptRun> runs);

/// The places of the grid, the best first, for a person.
std::string sweep_text(std::span<const SweptRun> runs);

}  // namespace meshard
