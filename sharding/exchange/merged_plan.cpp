// SPDX-License-Identifier: Apache-2.0
#include "sharding/exchange/merged_plan.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

using Plans = std::span<const std::shared_ptr<const ExchangePlan>>;

bool is_one_group(Plans plans)
{
    return !plans.empty() && std::ranges::all_of(plans, [&](const auto& plan) {
        return plan && plan->group().size() == plans[0]->group().size() &&
               plan->group().rank() == plans[0]->group().rank() && plan->group().axis() == plans[0]->group().axis();
    });
}

std::span<const std::int64_t> integers_in(const at::Tensor& integers)
{
    return {integers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(integers.numel())};
}

}  // namespace

MergedPlan stack_plans(Plans plans)
{
    if (!is_one_group(plans))
        throw InvalidInput("stack_plans: the plans are of several groups of ranks, or there are none; expected one a "
                           "cloud, of the same ranks.");
    const auto num_ranks = static_cast<std::size_t>(plans[0]->group().size());
    std::vector<std::int64_t> rows, send_counts(num_ranks, 0), receive_counts(num_ranks, 0);
    std::vector<std::vector<std::int64_t>> places(plans.size());
    std::vector<std::int64_t> sent_at(plans.size(), 0);
    std::int64_t place = 0, num_owned = 0;
    for (std::size_t r = 0; r < num_ranks; ++r) {
        num_owned = 0;
        for (std::size_t p = 0; p < plans.size(); ++p) {
            const auto sent = integers_in(plans[p]->sent_rows());
            for (std::int64_t i = 0; i < plans[p]->send_counts()[r]; ++i)
                rows.push_back(num_owned + sent[sent_at[p]++]);
            for (std::int64_t i = 0; i < plans[p]->receive_counts()[r]; ++i) places[p].push_back(place++);
            send_counts[r] += plans[p]->send_counts()[r];
            receive_counts[r] += plans[p]->receive_counts()[r];
            num_owned += plans[p]->num_owned();
        }
    }
    MergedPlan merged;
    merged.plan = std::make_shared<const ExchangePlan>(plans[0]->group(), num_owned, std::move(rows),
                                                       std::move(send_counts), std::move(receive_counts));
    for (const auto& own : places) merged.ghost_places.push_back(at::tensor(own, at::kLong));
    return merged;
}

}  // namespace meshard
