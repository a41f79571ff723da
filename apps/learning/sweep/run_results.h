// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/sweep/sweep_plan.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// A coefficient of a validation case.
struct JudgedCoefficient {
    double predicted = 0;
    double truth = 0;  ///< the table's, or where that has none the integral of the true fields
};

/// A case of a run's validation.
struct HeldOutCase {
    std::string id;
    std::map<std::string, JudgedCoefficient> coefficients;  ///< by name: `cd`, `cl`, `cd_head`, `cd_shape` ...
};

/// Results of a run of `train`: the numbers of its last validation.
struct RunResult {
    double error = 0;                  ///< mean of the fields' rel_l2, of roll-outs where there are any
    double best_error = 0;             ///< least of all its validations
    std::optional<double> drag_error;  ///< mae of Cd, by the table where it has one
    double loss = 0;                   ///< training loss of the last epoch
    double seconds = 0;                ///< time in training steps
    std::vector<HeldOutCase> cases;    ///< cases of the last validation, sorted by id
};

/// Reads metrics.jsonl and val_cases.csv in a run's folder; nothing if the run has not come to its end.
std::optional<RunResult> result_of(const std::filesystem::path& run);

/// A run of the sweep and its state.
struct SweptRun {
    SweepRun run;
    std::optional<RunResult> result;
    std::string state = "waiting";  ///< done, failed, stopped, waiting
};

/// All numbers: {format, version, runs: [{name, point, fold, seed, state, rel_l2, ..., cases}], points: [{point, n,
/// rel_l2: {mean, spread}, ..., cd, cd_head, cd_shape, cl, ..., cs, cmx, ...}]}. The spread is the standard deviation
/// (of n - 1) over folds and seeds, null for one run. `cd` and the like of a place take the validation cases of all its
/// runs as one list, each predicted by runs that have not seen it: `each_run` with a row a run, `mean_of_runs` with the
/// mean of the runs that judged a case, such as those of other seeds.
nlohmann::ordered_json sweep_json(std::span<const SweptRun> runs);

/// Returns a table with a line for each run.
std::string sweep_csv(std::span<const SweptRun> runs);

/// Returns tables of the places of the grid, the best first, for a person.
std::string sweep_text(std::span<const SweptRun> runs);

}  // namespace meshard
