// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_list.h"
#include "apps/learning/settings/training_config.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Order of the cases in each epoch, as indices into `cases`. It follows from seed and epoch alone.
///
/// Where data sets have shares, an epoch of n cases has round(n share) of each set, at least one (the largest remainders are rounded up, so that they are n).
/// Cases of a set come in passes through all of the set, each in an order of its own, which go on from epoch to epoch; in an epoch the sets are mixed.
class CaseOrder {
public:
    /// @param sets   with shares, or none
    /// @throws IoError, InvalidInput if the order file is missing, or an epoch in it is no permutation of the cases, or sets have shares besides.
    CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases, const std::vector<DataSetConfig>& sets = {});

    /// @param epoch   from 1   @throws InvalidInput if the order file ends before.
    std::vector<std::int64_t> of_epoch(std::int64_t epoch) const;

    /// Of each case of an epoch, in its order: which time it is that the case trains, from 1. Its points and variations are drawn by that.
    std::vector<std::int64_t> times_of_epoch(std::int64_t epoch) const;

    /// Cases of each set in an epoch, in the order of the sets; empty where they have no shares.
    std::vector<std::int64_t> cases_of_sets() const;

private:
    struct Set {
        std::vector<std::int64_t> cases;  // indices
        std::int64_t num_in_epoch = 0;
    };
    std::vector<std::pair<std::int64_t, std::int64_t>> mixed(std::int64_t epoch) const;

    std::vector<Set> sets_;  // that have shares
    std::int64_t num_cases_ = 0;
    std::int64_t seed_ = 0;
    bool shuffle_ = true;
    std::string file_;
    std::vector<std::vector<std::int64_t>> epochs_;  // from the order file
};

}  // namespace meshard
