// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/step_order.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace meshard {

StepOrder::StepOrder(CaseOrder order, std::int64_t num_cases, std::int64_t num_groups, std::int64_t group,
                     std::int64_t accumulate)
    : order_(std::move(order)), num_cases_(num_cases), num_groups_(num_groups), group_(group), accumulate_(accumulate)
{
}

std::int64_t StepOrder::cases_in_step(std::int64_t step) const
{
    return std::min(cases_per_step(), num_cases_ - step % steps_per_epoch() * cases_per_step());
}

std::vector<StepCase> StepOrder::cases_of_step(std::int64_t step) const
{
    const auto epoch = step / steps_per_epoch() + 1;
    const auto order = order_.of_epoch(epoch), times = order_.times_of_epoch(epoch);
    const auto before = step % steps_per_epoch() * cases_per_step(), num_counted = cases_in_step(step);
    std::vector<StepCase> cases;
    for (std::int64_t first = 0; first < num_counted; first += num_groups_) {
        const auto slot = first + group_;
        const auto weight =
            slot < num_counted ? static_cast<double>(num_groups_) / static_cast<double>(num_counted) : 0.0;
        const auto place = before + slot % num_counted;  // one of weight 0 is a case that this step has anyway
        cases.push_back({order[place], times[place], slot, weight});
    }
    return cases;
}

std::vector<std::int64_t> StepOrder::counted_in_step(std::int64_t step) const
{
    const auto order = order_.of_epoch(step / steps_per_epoch() + 1);
    const auto first = order.begin() + step % steps_per_epoch() * cases_per_step();
    return {first, first + cases_in_step(step)};
}

std::function<std::optional<CaseTurn>()> StepOrder::turns(std::int64_t first, std::int64_t end) const
{
    return [this, step = first, end, left = std::deque<CaseTurn>()]() mutable -> std::optional<CaseTurn> {
        if (left.empty()) {
            if (step >= end) return {};
            for (const auto& one : cases_of_step(step))
                left.push_back({one.index, one.time, step / steps_per_epoch() + 1});
            ++step;
        }
        const auto turn = left.front();
        left.pop_front();
        return turn;
    };
}

std::function<std::optional<CaseTurn>()> StepOrder::turns_of_split(std::int64_t num_cases, bool takes_part) const
{
    return [this, num_cases, takes_part, first = std::int64_t{0}]() mutable -> std::optional<CaseTurn> {
        const auto index = first + group_;
        if (first >= num_cases || (index >= num_cases && !takes_part)) return {};
        first += num_groups_;
        return CaseTurn{.index = std::min(index, num_cases - 1)};
    };
}

}  // namespace meshard
