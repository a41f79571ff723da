// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// A key of the configuration and the values that it takes in turn.
struct GridKey {
    std::string key;
    std::vector<std::string> values;  ///< as YAML
};

/// Parses a word such as `training.optimizer.lr=[1e-3, 3e-3]`; entries may be lists themselves.
/// @throws UsageError for another form, and a value named twice
GridKey grid_key(const std::string& word);

/// One run of `meshard train`.
struct SweepRun {
    std::string name;                ///< name of its folder
    std::string point;               ///< place in the grid, e.g. `lr=1e-3 n_layers=4`; empty without a grid
    std::vector<std::string> words;  ///< settings of that place
    std::int64_t fold = 0;           ///< number of the fold from 1; 0 without folds
    std::int64_t seed = 0;
    std::vector<std::string> train, val;  ///< ids of cases
};

/// Plans all runs. The runs of all places of the grid with the same seed and fold follow each other, so that an early
/// end leaves places that can be compared. Cases of the test split are in none of them. With folds the cases of train
/// and val are dealt anew, as equal as can be, in an order that `first_seed` draws: fold f has one share for validation
/// and trains on the others; each case is in one fold's validation.
/// @param num_folds   0: the split as it is
/// @throws UsageError where there are fewer cases than folds, or none for validation
std::vector<SweepRun> sweep_runs(const CaseLists& cases, const std::vector<GridKey>& grid, std::int64_t num_folds,
                                 std::int64_t num_seeds, std::int64_t first_seed);

/// Returns the seconds of a duration such as `90s`, `60m` or `1.5h`. @throws UsageError for another form
double seconds_of(const std::string& duration);

}  // namespace meshard
