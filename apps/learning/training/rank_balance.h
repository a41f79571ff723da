// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "sharding/ranks/rank_group.h"

#include <cstdint>
#include <functional>
#include <span>

namespace meshard {

/// Computes the shares with which the ranks of a case would have taken equal times for those steps that they took
/// `seconds` for with their shares. Returns `shares` as they are if the slowest rank took at most 1.1 times the mean.
/// @param shares    a number a rank, above zero, whose sum is 1
/// @param seconds   of each rank, without its waits for others
Shares balanced_shares(const Shares& shares, std::span<const double> seconds);

/// Finds out how large a share of each case every rank should have, by the time that it computes (`parallel.balance`).
/// Data groups, each of `num_domain_ranks` ranks, are balanced apart.
class RankBalance {
public:
    /// Turns the shares that the ranks of a case should have into those that they can have.
    using Attained = std::function<Shares(const Shares&)>;

    /// Each rank has the same share, or what is attained of that.
    RankBalance(std::int64_t num_groups, std::int64_t num_domain_ranks, Attained attained = {});

    /// The shares of all ranks of the run; those of a group add up to 1.
    const Shares& shares() const { return shares_; }
    /// Goes on with the shares that a run had, as far as they are attained. Returns false, and changes nothing, for
    /// those of another number of ranks or of groups.
    bool go_on_with(const Shares& shares);
    Shares of_group(std::int64_t group) const;

    /// Counts a step. @param seconds   that this rank computed, without its waits for others
    void add_step(double seconds);

    /// Looks at the steps since the shares changed, once there are enough. Returns whether they change now. Collective.
    bool update(const RankGroup& all);

private:
    void set(std::int64_t group, const Shares& wanted);

    std::int64_t num_domain_ranks_;
    Attained attained_;
    Shares shares_;
    std::int64_t num_steps_ = 0;
    double seconds_ = 0;
};

}  // namespace meshard
