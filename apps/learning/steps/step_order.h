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
    std::int64_t index = 0;  ///< index among the training cases
    std::int64_t time = 1;   ///< how many times the case has trained, counting this one (`CaseOrder::times_of_epoch`)
    std::int64_t slot = 0;   ///< position among the cases of the step
    double weight = 1;       ///< factor in the mean over the data groups; 0 if it only lets this group take part
};

/// Deals the cases of each step of a run to the data groups. Steps and epochs count from 0 here, but `CaseTurn` counts
/// epochs from 1.
class StepOrder {
public:
    /// @param accumulate   cases of a data group in a step
    StepOrder(CaseOrder order, std::int64_t num_cases, std::int64_t num_groups, std::int64_t group,
              std::int64_t accumulate);

    const CaseOrder& order() const { return order_; }

    std::int64_t cases_per_step() const { return num_groups_ * accumulate_; }
    std::int64_t steps_per_epoch() const { return (num_cases_ + cases_per_step() - 1) / cases_per_step(); }

    /// Returns how many cases all data groups take in a step: `accumulate` each, or, in the last step of an epoch, what
    /// is left.
    std::int64_t cases_in_step(std::int64_t step) const;

    /// Returns this group's cases of a step, as many as every other group has: a group without a case of its own takes
    /// part with another one that does not count.
    /// @throws InvalidInput as `CaseOrder::of_epoch`
    std::vector<StepCase> cases_of_step(std::int64_t step) const;

    /// Returns the indices of all cases that count in a step, of all groups.
    std::vector<std::int64_t> counted_in_step(std::int64_t step) const;

    /// Returns this group's cases of the steps `first` to `end` - 1, one after the other, then nothing.
    std::function<std::optional<CaseTurn>()> turns(std::int64_t first, std::int64_t end) const;

    /// Returns this group's cases of a split with `num_cases` cases, then nothing. With `takes_part`, a group without a
    /// last case takes part in the other groups' last ones.
    std::function<std::optional<CaseTurn>()> turns_of_split(std::int64_t num_cases, bool takes_part) const;

private:
    CaseOrder order_;
    std::int64_t num_cases_, num_groups_, group_, accumulate_;
};

}  // namespace meshard
