// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/steps/case_order.h"
#include "apps/learning/steps/case_set.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace meshard {

/// A case of a step, for one data group.
struct StepCase {
    std::int64_t index = 0;  ///< among the cases that train
    std::int64_t time = 1;   ///< that it trains, from 1 (`CaseOrder::times_of_epoch`)
    std::int64_t slot = 0;   ///< among the cases of the step
    double weight = 1;       ///< how often it counts in the mean over the data groups: 0 for one that only lets this group take part
};

/// Which cases each step of a run takes. Steps and epochs are counted from 0 here, but by `CaseTurn` from 1.
class StepOrder {
public:
    /// @param accumulate   cases of a data group in a step
    StepOrder(CaseOrder order, std::int64_t num_cases, std::int64_t num_groups, std::int64_t group, std::int64_t accumulate);

    const CaseOrder& order() const { return order_; }

    std::int64_t cases_per_step() const { return num_groups_ * accumulate_; }
    std::int64_t steps_per_epoch() const { return (num_cases_ + cases_per_step() - 1) / cases_per_step(); }

    /// Cases that the data groups take together in a step: as many each as are accumulated, but what is left of them in the last step of an epoch.
    std::int64_t cases_in_step(std::int64_t step) const;

    /// Those of this data group, as many as of every other: one that is left without a case takes part with another that does not count.
    /// @throws InvalidInput as `CaseOrder::of_epoch`
    std::vector<StepCase> cases_of_step(std::int64_t step) const;

    /// Indices of all that count in a step, whatever group has them.
    std::vector<std::int64_t> counted_in_step(std::int64_t step) const;

    /// This group's cases of the steps from `first` to `end` - 1, one after the other, then nothing.
    std::function<std::optional<CaseTurn>()> turns(std::int64_t first, std::int64_t end) const;

    /// This group's of as many cases as a split has, then nothing. On request it takes part in the last ones of other groups, too.
    std::function<std::optional<CaseTurn>()> turns_of_split(std::int64_t num_cases, bool takes_part) const;

private:
    CaseOrder order_;
    std::int64_t num_cases_, num_groups_, group_, accumulate_;
};

}  // namespace meshard
