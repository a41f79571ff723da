// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/case_order.h"

#include "partition/error.h"
#include "partition/lists.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace meshard {

namespace {

// Neighbouring epochs and sets need seeds that are far apart.
constexpr std::uint64_t kEpochStride = 0x9E3779B97F4A7C15, kSetStride = 0xC2B2AE3D27D4EB4F;

std::vector<std::int64_t> in_order(std::int64_t n, bool is_shuffled, std::uint64_t seed)
{
    if (is_shuffled) return shuffled_order(n, seed);
    auto order = numbers_from<std::int64_t>(0, n);
    return order;
}

/// Returns the sets' shares, which add up to 1; empty if the sets have none. Sets none of whose cases train get 0.
std::vector<double> shares_of(const std::vector<DataSetConfig>& sets, const std::vector<CaseSource>& cases)
{
    std::vector<double> shares;
    double sum = 0;
    for (const auto& set : sets) {
        shares.push_back(std::ranges::find(cases, set.name, &CaseSource::set) != cases.end() ? set.share : 0);
        sum += shares.back();
    }
    if (!(sum > 0)) return {};
    for (auto& share : shares) share /= sum;
    return shares;
}

/// Splits `total` into whole numbers that are as near to the shares as possible, at least 1 for shares above 0.
std::vector<std::int64_t> quotas_of(const std::vector<double>& shares, std::int64_t total)
{
    std::vector<std::int64_t> quotas;
    std::int64_t sum = 0;
    for (const auto share : shares) {
        quotas.push_back(std::max<std::int64_t>(
            share > 0 ? 1 : 0, static_cast<std::int64_t>(std::floor(share * static_cast<double>(total)))));
        sum += quotas.back();
    }
    const auto lacks = [&](std::size_t s) {
        return shares[s] * static_cast<double>(total) - static_cast<double>(quotas[s]);
    };
    for (; sum < total; ++sum) {
        std::size_t chosen = 0;
        for (std::size_t s = 1; s < quotas.size(); ++s)
            if (lacks(s) > lacks(chosen)) chosen = s;
        ++quotas[chosen];
    }
    for (; sum > total; --sum) {
        const std::int64_t least = std::ranges::max(quotas) > 1 ? 1 : 0;  // to 0 only with more sets than cases
        auto chosen = quotas.size();
        for (std::size_t s = 0; s < quotas.size(); ++s)
            if (quotas[s] > least && (chosen == quotas.size() || lacks(s) < lacks(chosen))) chosen = s;
        --quotas[chosen];
    }
    return quotas;
}

}  // namespace

CaseOrder::CaseOrder(const TrainingConfig& config, std::int64_t seed, const std::vector<CaseSource>& cases,
                     const std::vector<DataSetConfig>& sets)
    : num_cases_(std::ssize(cases)), seed_(seed), shuffle_(config.shuffle), file_(config.order_file.string())
{
    const auto shares = shares_of(sets, cases);
    if (!shares.empty()) {
        if (!file_.empty())
            throw InvalidInput(
                "training.order_file {} says the order of the cases, and data.sets have shares: leave one of them out.",
                file_);
        const auto quotas = quotas_of(shares, num_cases_);
        for (std::size_t s = 0; s < sets.size(); ++s) {
            Set set{{}, quotas[s]};
            for (std::int64_t i = 0; i < num_cases_; ++i) {
                if (cases[i].set == sets[s].name) set.cases.push_back(i);
            }
            sets_.push_back(std::move(set));
        }
    }
    if (file_.empty()) return;
    std::ifstream stream(file_);
    if (!stream) throw IoError("training.order_file {} cannot be read.", file_);
    std::int64_t number = 0;
    for (std::string text; std::getline(stream, text);) {
        ++number;
        if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
        const auto line = nlohmann::json::parse(text, nullptr, false);
        const auto where = fmt::format("training.order_file {}, line {}", file_, number);
        if (line.is_discarded()) throw IoError("{} is no JSON.", where);
        if (!line.contains("order") || !line.contains("epoch")) continue;
        if (line["epoch"] != std::ssize(epochs_) + 1)
            throw InvalidInput("{}: epoch {} is out of turn.", where, line["epoch"].dump());
        std::vector<std::int64_t> order;
        std::vector<bool> is_taken(cases.size(), false);
        for (const auto& id : line["order"]) {
            const auto found = std::ranges::find_if(cases, [&](const auto& source) { return id == source.id; });
            const auto i = found - cases.begin();
            if (found == cases.end() || is_taken[i])
                throw InvalidInput("{}: case {} is no training case, or stands there twice.", where, id.dump());
            is_taken[i] = true;
            order.push_back(i);
        }
        if (order.size() != cases.size()) {
            throw InvalidInput("{} orders {} cases, and {} train.", where, order.size(), cases.size());
        }
        epochs_.push_back(std::move(order));
    }
}

/// Returns each case of an epoch with its turn, if sets have shares.
std::vector<std::pair<std::int64_t, std::int64_t>> CaseOrder::mixed(std::int64_t epoch) const
{
    std::vector<std::pair<std::int64_t, std::int64_t>> drawn;
    for (std::size_t s = 0; s < sets_.size(); ++s) {
        const auto& set = sets_[s];
        const auto size = std::ssize(set.cases);
        std::int64_t pass = -1;
        std::vector<std::int64_t> order;
        for (std::int64_t draw = (epoch - 1) * set.num_in_epoch; draw < epoch * set.num_in_epoch; ++draw) {
            if (draw / size != pass) {
                pass = draw / size;
                order = in_order(size, shuffle_,
                                 static_cast<std::uint64_t>(seed_) +
                                     kEpochStride * static_cast<std::uint64_t>(pass + 1) + kSetStride * (s + 1));
            }
            drawn.emplace_back(set.cases[order[draw % size]], pass + 1);
        }
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const auto i : in_order(std::ssize(drawn), shuffle_,
                                 static_cast<std::uint64_t>(seed_) + kEpochStride * static_cast<std::uint64_t>(epoch)))
        all.push_back(drawn[i]);
    return all;
}

std::vector<std::int64_t> CaseOrder::cases_of_sets() const
{
    std::vector<std::int64_t> counts;
    for (const auto& set : sets_) counts.push_back(set.num_in_epoch);
    return counts;
}

std::vector<std::int64_t> CaseOrder::times_of_epoch(std::int64_t epoch) const
{
    if (sets_.empty()) return std::vector<std::int64_t>(num_cases_, epoch);
    std::vector<std::int64_t> times;
    for (const auto& [index, time] : mixed(epoch)) times.push_back(time);
    return times;
}

void CaseOrder::require_epoch(std::int64_t epoch) const
{
    if (file_.empty() || epoch <= std::ssize(epochs_)) return;
    throw InvalidInput("training.order_file {} ends after epoch {}; epoch {} has no order.", file_, epochs_.size(),
                       epoch);
}

std::vector<std::int64_t> CaseOrder::of_epoch(std::int64_t epoch) const
{
    if (!sets_.empty()) {
        std::vector<std::int64_t> order;
        for (const auto& [index, time] : mixed(epoch)) order.push_back(index);
        return order;
    }
    require_epoch(epoch);
    if (!file_.empty()) return epochs_[epoch - 1];
    return in_order(num_cases_, shuffle_,
                    static_cast<std::uint64_t>(seed_) + kEpochStride * static_cast<std::uint64_t>(epoch));
}

}  // namespace meshard
