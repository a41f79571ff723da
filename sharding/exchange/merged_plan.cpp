// SPDX-License-Identifier: Apache-2.0
#include "sharding/exchange/merged_plan.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <unordered_map>

namespace meshard {
namespace {

using Plans = std::span<const std::shared_ptr<const ExchangePlan>>;

bool is_one_group(Plans plans)
{
    return !plans.empty() && std::all_of(plans.begin(), plans.end(), [&](const auto& plan) {
        return plan && plan->group().size() == plans[0]->group().size() && plan->group().rank() == plans[0]->group().rank() &&
               plan->group().axis() == plans[0]->group().axis();
    });
}

std::span<const std::int64_t> integers_in(const at::Tensor& integers)
{
    return {integers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(integers.numel())};
}

/// For each rank the union of the rows of all plans, in the order of the plans.
struct Union {
    std::vector<std::int64_t> rows, counts;
    std::vector<std::vector<std::int64_t>> places;  ///< for each plan, the positions of its rows in the union

    /// @param plan_rows     rows of each plan, sorted by rank
    /// @param plan_counts   `plan_counts[p][r]`: rows of plan p for rank r
    Union(const std::vector<std::span<const std::int64_t>>& plan_rows, const std::vector<std::vector<std::int64_t>>& plan_counts)
        : counts(plan_counts[0].size(), 0), places(plan_rows.size())
    {
        std::vector<std::size_t> at(plan_rows.size(), 0);
        for (std::size_t r = 0; r < counts.size(); ++r) {
            std::unordered_map<std::int64_t, std::int64_t> place_of;
            const auto before = rows.size();
            for (std::size_t p = 0; p < plan_rows.size(); ++p) {
                for (std::int64_t i = 0; i < plan_counts[p][r]; ++i) {
                    const auto row = plan_rows[p][at[p]++];
                    const auto [found, is_new] = place_of.try_emplace(row, static_cast<std::int64_t>(rows.size()));
                    if (is_new) rows.push_back(row);
                    places[p].push_back(found->second);
                }
            }
            counts[r] = static_cast<std::int64_t>(rows.size() - before);
        }
    }
};

}  // namespace

MergedPlan merge_plans(Plans plans)
{
    const bool fits =
        is_one_group(plans) && std::all_of(plans.begin(), plans.end(), [&](const auto& plan) { return plan->num_owned() == plans[0]->num_owned(); });
    if (!(plans.empty() || !plans[0] ? fits : plans[0]->group().all_agree(fits))) {
        throw InvalidInput("merge_plans: the plans are of several layouts, or there are none; expected plans over the same owned rows of the same ranks.");
    }
    const auto& group = plans[0]->group();
    // A ghost is identified by its row number at its owner.
    std::vector<at::Tensor> ghosts;
    std::vector<std::span<const std::int64_t>> sent, received;
    std::vector<std::vector<std::int64_t>> send_counts, receive_counts;
    for (const auto& plan : plans) {
        ghosts.push_back(group.all_to_all_rows(plan->sent_rows(), plan->send_counts(), plan->receive_counts()));
        sent.push_back(integers_in(plan->sent_rows()));
        send_counts.push_back(plan->send_counts());
        receive_counts.push_back(plan->receive_counts());
    }
    for (const auto& rows : ghosts) received.push_back(integers_in(rows));
    Union to_send(sent, send_counts);
    const Union to_receive(received, receive_counts);
    MergedPlan merged;
    merged.plan = std::make_shared<const ExchangePlan>(group, plans[0]->num_owned(), std::move(to_send.rows), std::move(to_send.counts), to_receive.counts);
    for (const auto& places : to_receive.places) merged.ghost_places.push_back(at::tensor(places, at::kLong));
    return merged;
}

MergedPlan stack_plans(Plans plans)
{
    if (!is_one_group(plans))
        throw InvalidInput("stack_plans: the plans are of several groups of ranks, or there are none; expected one a cloud, of the same ranks.");
    const auto num_ranks = static_cast<std::size_t>(plans[0]->group().size());
    std::vector<std::int64_t> rows, send_counts(num_ranks, 0), receive_counts(num_ranks, 0);
    std::vector<std::vector<std::int64_t>> places(plans.size());
    std::vector<std::int64_t> sent_at(plans.size(), 0);
    std::int64_t place = 0, num_owned = 0;
    for (std::size_t r = 0; r < num_ranks; ++r) {
        num_owned = 0;
        for (std::size_t p = 0; p < plans.size(); ++p) {
            const auto sent = integers_in(plans[p]->sent_rows());
            for (std::int64_t i = 0; i < plans[p]->send_counts()[r]; ++i) rows.push_back(num_owned + sent[sent_at[p]++]);
            for (std::int64_t i = 0; i < plans[p]->receive_counts()[r]; ++i) places[p].push_back(place++);
            send_counts[r] += plans[p]->send_counts()[r];
            receive_counts[r] += plans[p]->receive_counts()[r];
            num_owned += plans[p]->num_owned();
        }
    }
    MergedPlan merged;
    merged.plan = std::make_shared<const ExchangePlan>(plans[0]->group(), num_owned, std::move(rows), std::move(send_counts), std::move(receive_counts));
    for (const auto& own : places) merged.ghost_places.push_back(at::tensor(own, at::kLong));
    return merged;
}

}  // namespace meshard
