// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/cases/case_list.h"
#include "apps/settings/training_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Learning rate of a step (from 0) over the highest one: rises in a line for `warmup_steps`, then half a cosine down to
/// `min_learning_rate`, or constant.
double learning_rate(const TrainingConfig& config, std::int64_t step, std::int64_t num_steps);

/// Order of the cases in each epoch, as indices into `cases`.
class CaseOrder {
public:
    /// @throws IoError, InvalidInput if the order file is missing, or an epoch in it is no permutation of the cases.
    CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases);

    /// @param epoch   from 1   @throws InvalidInput if the order file ends before.
    std::vector<std::int64_t> of_epoch(std::int64_t epoch) const;

private:
    std::int64_t num_cases_ = 0;
    std::int64_t seed_ = 0;
    bool shuffle_ = true;
    std::string file_;
    std::vector<std::vector<std::int64_t>> epochs_;  // from the order file
};

}  // namespace meshard
