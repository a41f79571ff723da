// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// The order of the cases in each epoch, as indices into `cases`. It depends on seed and epoch alone.
///
/// If data sets have shares, an epoch of n cases has round(n share) of each set with training cases, at least one; the
/// largest remainders are rounded up, so that there are n in all. The cases of a set come in passes through the whole
/// set, each in its own order, which continue from epoch to epoch; within an epoch the sets are mixed.
class CaseOrder {
public:
    /// @param sets   all with shares or all without
    /// @throws IoError, InvalidInput if the order file is missing, or an epoch in it is no permutation of the cases, or
    /// sets have shares besides.
    CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases,
              const std::vector<DataSetConfig>& sets = {});

    /// @param epoch   from 1   @throws InvalidInput if the order file ends before.
    std::vector<std::int64_t> of_epoch(std::int64_t epoch) const;

    /// @throws InvalidInput as `of_epoch`
    void require_epoch(std::int64_t epoch) const;

    /// Returns for each case of an epoch, in its order, how many times it has trained, counting this one. Its points
    /// and variations are drawn by this number.
    std::vector<std::int64_t> times_of_epoch(std::int64_t epoch) const;

    /// Returns the number of cases of each set in an epoch, in the order of the sets; empty if they have no shares.
    std::vector<std::int64_t> cases_of_sets() const;

private:
    struct Set {
        std::vector<std::int64_t> cases;  // indices
        std::int64_t num_in_epoch = 0;
    };
    std::vector<std::pair<std::int64_t, std::int64_t>> mixed(std::int64_t epoch) const;

    std::vector<Set> sets_;  // only sets with shares
    std::int64_t num_cases_ = 0;
    std::int64_t seed_ = 0;
    bool shuffle_ = true;
    std::string file_;
    std::vector<std::vector<std::int64_t>> epochs_;  // from the order file
};

}  // namespace meshard
