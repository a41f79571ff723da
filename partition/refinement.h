// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/partition.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// What parts should weigh. Nothing given: each row weighs one, all parts the same.
struct BalanceTarget {
    double imbalance = 1.03;                   ///< largest allowed part over its fair share
    std::int32_t num_weights = 1;
    std::span<const std::int32_t> row_weights = {}; ///< (rows, num_weights), not negative, or none
    std::span<const double> capacities = {};        ///< one a part, positive, in any unit, or none
};

/// What each part may weigh, (num_parts, num_weights): its share of the total times the imbalance. Where all rows weigh one
/// and all parts are alike, never less than the mean rounded up (`largest_part_allowed`).
/// @throws InvalidInput if sizes disagree, a weight is negative, a capacity not positive, or imbalance below 1.
std::vector<std::int64_t> largest_weights_allowed(std::int64_t num_rows, std::int32_t num_parts,
                                                  const BalanceTarget& balance);

/// Largest part weight over the part's fair share, of each weight; 1 for a weight that no row has.
std::vector<double> imbalances(const Partition& partition, const BalanceTarget& balance);

enum class RefinementEffort : std::uint8_t {
    Fast,   ///< about one and a half times as long as METIS's k-way
    Thorough ///< several times that
};

struct RefinementOptions {
    BalanceTarget balance = {};
    RefinementEffort effort = RefinementEffort::Fast;
    /// What the largest ghost count counts for beside the cut, 0 to 1.
    double ghost_share = 0.35;
    bool contiguous = false; ///< every part in one piece, as far as the graph and the balance allow
    std::uint64_t seed = 0;
};

/// Makes a partition better: repairs what is broken (parts above the bound, empty parts, on request parts in pieces), then
/// moves rows at the boundaries so that the cut and the largest ghost count fall (boundary_search.h).
///
/// After the repair neither the cut nor the largest ghost count (one layer) gets worse. The whole allowed imbalance is used. Same input,
/// options and seed: same result.
/// @return parts that are still in several pieces though asked not to be, ascending.
/// @throws InvalidInput if sizes disagree.
std::vector<std::int32_t> refine_partition(Partition& partition, const Csr& graph, const RefinementOptions& options);

/// Moves rows until no part is above `most_weight` (`largest_weights_allowed`) as far as that can be reached by moving
/// boundary rows to parts that are less full, with the cheapest moves first; fills empty parts. Deterministic.
void balance_weights(Partition& partition, const Csr& graph, const BalanceTarget& balance);

/// Gives every piece of a part but its largest to the part next to it that shares most edges with it.
/// Pieces of a graph that is itself in pieces stay where they have no neighbour.
/// @return rows moved.
std::int64_t join_islands(Partition& partition, const Csr& graph);

} // namespace meshard
