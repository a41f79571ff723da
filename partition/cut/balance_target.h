// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/partition.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Target weights of the parts. By default each row weighs one, and all parts have the same target.
struct BalanceTarget {
    double imbalance = 1.03;  ///< largest allowed ratio of a part to its fair share
    std::int32_t num_weights = 1;
    std::span<const std::int32_t> row_weights = {};  ///< (rows, num_weights), not negative, or empty
    std::span<const double> capacities = {};         ///< one for each part, positive, in any unit, or empty

    /// Returns whether each row weighs one and all parts have the same capacity.
    bool is_plain() const { return row_weights.empty() && capacities.empty(); }
};

/// Upper bound of each part's weights, (num_parts, num_weights): its share of the total times the imbalance. For a
/// plain target never less than the mean rounded up (`largest_part_allowed`).
/// @throws InvalidInput if sizes disagree, a weight is negative, a capacity not positive, or imbalance below 1.
std::vector<std::int64_t> largest_weights_allowed(std::int64_t num_rows, std::int32_t num_parts,
                                                  const BalanceTarget& balance);

/// For each weight the largest ratio of a part's weight to its fair share; 1 for a weight that no row has.
std::vector<double> imbalances(const Partition& partition, const BalanceTarget& balance);

/// Weights of each part, (num_parts, num_weights).
std::vector<std::int64_t> part_weights(const Partition& partition, const BalanceTarget& balance);

/// Sum of the weights above `most_weight`, over all parts and weights.
std::int64_t overload(const Partition& partition, const BalanceTarget& balance,
                      std::span<const std::int64_t> most_weight);

}  // namespace meshard
