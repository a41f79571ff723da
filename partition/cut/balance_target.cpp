// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/balance_target.h"

#include "partition/cut/balance.h"
#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace meshard {

namespace {

std::vector<std::int64_t> total_weights(std::int64_t num_rows, const BalanceTarget& balance)
{
    std::vector<std::int64_t> totals(balance.num_weights, balance.row_weights.empty() ? num_rows : 0);
    for (std::size_t i = 0; i < balance.row_weights.size(); ++i) totals[i % totals.size()] += balance.row_weights[i];
    return totals;
}

std::vector<double> shares_of(std::int32_t num_parts, const BalanceTarget& balance)
{
    std::vector<double> shares(num_parts, 1.0 / num_parts);
    if (balance.capacities.empty()) return shares;
    double sum = 0;
    for (const auto capacity : balance.capacities) sum += capacity;
    for (std::int32_t part = 0; part < num_parts; ++part) shares[part] = balance.capacities[part] / sum;
    return shares;
}

}  // namespace

std::vector<std::int64_t> largest_weights_allowed(std::int64_t num_rows, std::int32_t num_parts,
                                                  const BalanceTarget& balance)
{
    const auto fail = [](const std::string& what) { throw InvalidInput("BalanceTarget: {}", what); };
    if (!(balance.imbalance >= 1))
        fail(fmt::format("imbalance is {}, expected 1 or more, e.g. 1.03.", balance.imbalance));
    if (balance.num_weights < 1) fail(fmt::format("num_weights is {}, expected 1 or more.", balance.num_weights));
    if (!balance.row_weights.empty() && std::ssize(balance.row_weights) != num_rows * balance.num_weights)
        fail(fmt::format("there are {} row weights, expected {} rows of {}.", balance.row_weights.size(), num_rows,
                         balance.num_weights));
    const auto negative = std::ranges::find_if(balance.row_weights, [](auto weight) { return weight < 0; });
    if (negative != balance.row_weights.end()) fail(fmt::format("a row weighs {}, expected 0 or more.", *negative));
    if (!balance.capacities.empty() && static_cast<std::int32_t>(balance.capacities.size()) != num_parts)
        fail(fmt::format("there are {} capacities for {} parts.", balance.capacities.size(), num_parts));
    for (const auto capacity : balance.capacities)
        if (!(capacity > 0) || !std::isfinite(capacity))
            fail(fmt::format("a capacity is {}, expected a positive number.", capacity));

    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<std::int64_t> most(num_parts * num_weights);
    if (balance.is_plain()) {
        std::ranges::fill(most, largest_part_allowed(num_rows, num_parts, balance.imbalance));
        return most;
    }
    const auto totals = total_weights(num_rows, balance);
    const auto shares = shares_of(num_parts, balance);
    for (std::size_t at = 0; at < most.size(); ++at) {
        const auto fair = shares[at / num_weights] * static_cast<double>(totals[at % num_weights]);
        const auto total = totals[at % num_weights];
        const auto allowed = std::floor(balance.imbalance * fair);
        most[at] = allowed >= static_cast<double>(total) ? total
                                                         : std::max(static_cast<std::int64_t>(std::ceil(fair - 1e-9)),
                                                                    static_cast<std::int64_t>(allowed));
    }
    return most;
}

std::vector<double> imbalances(const Partition& partition, const BalanceTarget& balance)
{
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    const auto totals = total_weights(partition.num_rows(), balance);
    const auto shares = shares_of(partition.num_parts, balance);
    const auto weights = part_weights(partition, balance);
    std::vector<double> largest(num_weights, 1);
    for (std::size_t w = 0; w < num_weights; ++w) {
        if (totals[w] == 0) continue;
        largest[w] = 0;
        for (std::int32_t part = 0; part < partition.num_parts; ++part)
            largest[w] = std::max(largest[w], static_cast<double>(weights[part * num_weights + w]) /
                                                  (shares[part] * static_cast<double>(totals[w])));
    }
    return largest;
}

std::vector<std::int64_t> part_weights(const Partition& partition, const BalanceTarget& balance)
{
    const auto num_weights = static_cast<std::size_t>(balance.num_weights);
    std::vector<std::int64_t> weights(partition.num_parts * num_weights, 0);
    for (std::size_t i = 0; i < partition.owners.size(); ++i)
        for (std::size_t w = 0; w < num_weights; ++w)
            weights[partition.owners[i] * num_weights + w] +=
                balance.row_weights.empty() ? 1 : balance.row_weights[i * num_weights + w];
    return weights;
}

std::int64_t overload(const Partition& partition, const BalanceTarget& balance,
                      std::span<const std::int64_t> most_weight)
{
    std::int64_t sum = 0;
    const auto weights = part_weights(partition, balance);
    for (std::size_t at = 0; at < weights.size(); ++at) sum += std::max<std::int64_t>(0, weights[at] - most_weight[at]);
    return sum;
}

}  // namespace meshard
