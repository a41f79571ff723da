// SPDX-License-Identifier: Apache-2.0
#include "sharding/exchange/exchange_plan.h"

#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

namespace meshard {
namespace {

at::Tensor integers(std::span<const std::int64_t> values)
{
    return at::tensor(at::ArrayRef<std::int64_t>(values.data(), values.size()), at::kLong);
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts)
{
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::string ranks_in(const std::vector<std::int64_t>& counts)
{
    std::string text;
    for (std::size_t r = 0; r < counts.size(); ++r) {
        if (counts[r] > 0) text += (text.empty() ? "" : ", ") + std::to_string(r);
    }
    return text.empty() ? "none" : text;
}

}  // namespace

std::shared_ptr<const ExchangePlan> ExchangePlan::find(const IndexMap& index_map, const RankGroup& group)
{
    std::string wrong;
    try {
        index_map.validate(group.rank());
        for (const auto owner : index_map.ghost_owners) {
            if (owner < 0 || owner >= group.size()) throw InvalidInput("a ghost of part {}, which is no rank", owner);
        }
    } catch (const InvalidInput& error) {
        wrong = error.what();
    }
    // Rows wanted from each rank, then 1 if this rank's map is valid.
    std::vector<std::int64_t> mine(group.size() + 1, 0);
    if (wrong.empty()) {
        for (const auto owner : index_map.ghost_owners) ++mine[owner];
    }
    mine.back() = wrong.empty();
    const auto all = group.all_gather_integers(mine);
    for (std::size_t r = 0; r < all.size(); ++r) {
        if (!all[r].back()) {
            throw InvalidInput("ExchangePlan: the index map of rank {} is not sound{} Pass the maps of one "
                               "partition with as many parts as ranks, each on its rank.",
                               r, wrong.empty() ? "." : ": " + wrong);
        }
    }
    mine.pop_back();
    std::vector<std::int64_t> asked;
    for (const auto& rank : all) asked.push_back(rank[group.rank()]);

    const auto requests = group.all_to_all_rows(integers(index_map.ghosts()), mine, asked);
    std::vector<std::int64_t> sent;
    for (const auto id :
         std::span(requests.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(requests.numel()))) {
        const auto row =
            std::lower_bound(index_map.owned().begin(), index_map.owned().end(), id) - index_map.owned().begin();
        if (row == index_map.num_owned || index_map.owned()[row] != id) wrong = fmt::format("row {}", id);
        sent.push_back(row);
    }
    if (!group.all_agree(wrong.empty())) {
        throw InvalidInput(
            "ExchangePlan: {} does not own is wanted of it. Pass the maps of one partition, each on its rank.",
            wrong.empty() ? std::string("a row that another rank")
                          : fmt::format("{}, which rank {}", wrong, group.rank()));
    }
    const auto plan =
        std::make_shared<ExchangePlan>(group, index_map.num_owned, std::move(sent), std::move(asked), std::move(mine));
    plan->is_agreed_ = false;
    return plan;
}

ExchangePlan::ExchangePlan(RankGroup group, std::int64_t num_owned, std::vector<std::int64_t> sent_rows,
                           std::vector<std::int64_t> send_counts, std::vector<std::int64_t> receive_counts)
    : group_(std::move(group)), num_owned_(num_owned), num_ghosts_(sum_of(receive_counts)), sent_(integers(sent_rows)),
      send_counts_(std::move(send_counts)), receive_counts_(std::move(receive_counts))
{
    const auto size = static_cast<std::size_t>(group_.size());
    const auto are_counts = [&](std::span<const std::int64_t> counts) {
        return counts.size() == size && std::ranges::all_of(counts, [](std::int64_t count) { return count >= 0; });
    };
    const bool fits = are_counts(send_counts_) && are_counts(receive_counts_) && sum_of(send_counts_) == num_sent();
    const bool owned = std::ranges::all_of(sent_rows, [&](std::int64_t row) { return row >= 0 && row < num_owned_; });
    if (!fits || !owned) {
        throw InvalidInput("ExchangePlan: {} rows to send, counts for {} ranks; expected a count for each "
                           "of {} ranks, from 0, and rows below {}.",
                           num_sent(), send_counts_.size(), size, num_owned_);
    }
}

at::Tensor ExchangePlan::sent_rows(const at::Device& device) const
{
    if (device.is_cpu()) return sent_;
    const std::lock_guard lock(copies_mutex_);
    for (const auto& copy : sent_on_devices_) {
        if (copy.device() == device) return copy;
    }
    return sent_on_devices_.emplace_back(sent_.to(device));
}

std::string to_string(const ExchangePlan& plan)
{
    return fmt::format("ExchangePlan: {} owned rows, {} sent to ranks {}, {} ghosts from ranks {}", plan.num_owned(),
                       plan.num_sent(), ranks_in(plan.send_counts()), plan.num_ghosts(),
                       ranks_in(plan.receive_counts()));
}

}  // namespace meshard
