// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/training/roll_out.h"
#include "apps/learning/training/run_state.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Errors of the fields over the cases of a split.
struct SplitErrors {
    std::vector<double> relative_l2;  ///< of each field, the mean over cases of each case's error
    double loss = 0;
    std::vector<Evaluation> judged;        ///< all metrics of all cases, one a part
    std::vector<RolledOutRun> rolled_out;  ///< where cases are steps of runs

    double mean() const;  ///< of `relative_l2`, or of the errors of runs that were rolled out
};

/// Predicts all cases of a split with the averaged weights, where there are some, and judges them. Collective.
SplitErrors split_errors(Run& run, CaseSet RunCases::* split, const std::string& name);

/// {field: {rel_l2: ...}}, as checkpoints keep it.
nlohmann::ordered_json error_json(const Run& run, const SplitErrors& errors);

/// Records all numbers of a split, and writes a line a case to NAME_cases.csv.
void record_errors(Run& run, const SplitErrors& errors, const std::string& name, std::int64_t epoch);

/// Says `, rolled out 0.0312 (persistence 0.4)`, or nothing.
std::string roll_out_text(const SplitErrors& errors);

/// Judges, records and says the errors of the test cases, if there are some, with the run's present weights.
/// Collective.
/// @param checkpoint   name of the checkpoint that has these weights  @param epoch   after which it was kept
void judge_test_cases(Run& run, const std::string& checkpoint, std::int64_t epoch);

}  // namespace meshard
