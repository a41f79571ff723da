// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/rank_balance.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace meshard {
namespace {

constexpr double kTolerated = 1.1;      // the slowest rank's time over the mean
constexpr double kLeastOfEqual = 0.05;  // a share over that of equal shares: a rank that hangs for once keeps some rows
constexpr std::int64_t kFirstSteps = 1;  // after a change: they allocate memory, and read cases again
constexpr std::int64_t kFewestSteps = 5;

}  // namespace

Shares balanced_shares(const Shares& shares, std::span<const double> seconds)
{
    const auto num_ranks = static_cast<double>(shares.size());
    const auto mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / num_ranks;
    if (std::ranges::max(seconds) <= kTolerated * mean) return shares;
    Shares balanced;
    for (std::size_t r = 0; r < shares.size(); ++r) balanced.push_back(shares[r] / std::max(seconds[r], 1e-3 * mean));
    const auto normalize = [&] {
        const auto sum = std::accumulate(balanced.begin(), balanced.end(), 0.0);
        for (auto& share : balanced) share /= sum;
    };
    normalize();
    for (auto& share : balanced) share = std::max(share, kLeastOfEqual / num_ranks);
    normalize();
    return balanced;
}

RankBalance::RankBalance(std::int64_t num_groups, std::int64_t num_domain_ranks, Attained attained)
    : num_domain_ranks_(num_domain_ranks), attained_(std::move(attained)),
      shares_(static_cast<std::size_t>(num_groups * num_domain_ranks), 1.0 / static_cast<double>(num_domain_ranks))
{
    for (std::int64_t group = 0; group < num_groups; ++group) set(group, of_group(group));
}

/// Gives the ranks of a group what is attained of the shares that they should have.
void RankBalance::set(std::int64_t group, const Shares& wanted)
{
    std::ranges::copy(attained_ ? attained_(wanted) : wanted, shares_.begin() + group * num_domain_ranks_);
}

bool RankBalance::go_on_with(const Shares& shares)
{
    const auto num_groups = static_cast<double>(std::ssize(shares_) / num_domain_ranks_);
    const auto sum = std::accumulate(shares.begin(), shares.end(), 0.0);  // 1 for each group
    if (shares.size() != shares_.size() || std::abs(sum - num_groups) > 0.5) return false;
    shares_ = shares;
    for (std::int64_t group = 0; group * num_domain_ranks_ < std::ssize(shares_); ++group) set(group, of_group(group));
    return true;
}

Shares RankBalance::of_group(std::int64_t group) const
{
    const auto first = shares_.begin() + group * num_domain_ranks_;
    return {first, first + num_domain_ranks_};
}

void RankBalance::add_step(double seconds)
{
    if (++num_steps_ > kFirstSteps) seconds_ += seconds;
}

bool RankBalance::update(const RankGroup& all)
{
    if (num_steps_ < kFirstSteps + kFewestSteps) return false;
    const auto num_ranks = std::ssize(shares_);
    auto seconds = at::zeros({num_ranks}, at::kDouble);
    seconds[all.rank()] = seconds_ / static_cast<double>(num_steps_ - kFirstSteps);
    all.all_reduce(seconds);
    num_steps_ = 0;
    seconds_ = 0;
    const std::span of_all(seconds.const_data_ptr<double>(), shares_.size());
    const auto before = shares_;
    for (std::int64_t group = 0; group * num_domain_ranks_ < num_ranks; ++group)
        set(group, balanced_shares(of_group(group), of_all.subspan(group * num_domain_ranks_, num_domain_ranks_)));
    return shares_ != before;
}

}  // namespace meshard
