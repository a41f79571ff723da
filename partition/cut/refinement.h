// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/balance_target.h"
#include "partition/cut/cut_measures.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace meshard {

enum class RefinementEffort : std::uint8_t {
    Fast,     ///< takes about one and a half times as long as METIS's k-way
    Thorough  ///< takes several times as long as Fast
};

struct RefinementOptions {
    BalanceTarget balance = {};
    RefinementEffort effort = RefinementEffort::Fast;
    /// Weight of the largest ghost count relative to the cut, 0 to 1.
    double ghost_share = 0.35;
    bool contiguous = false;  ///< make every part connected, as far as the graph and the balance allow
    std::uint64_t seed = 0;
    /// Upper bounds of both measures of the result; if not set, those of the start.
    std::optional<CutMeasures> most = {};
};

/// Improves a partition: repairs it (parts above the bound, empty parts, on request disconnected parts), then moves
/// rows at the boundaries so that the cut and the largest ghost count decrease (boundary_search.h).
///
/// After the repair neither the cut nor the largest ghost count (one layer) becomes worse, or exceeds `most`. The whole
/// allowed imbalance is used. The same input, options and seed give the same result.
/// @return with `contiguous`, the parts that are still disconnected, ascending.
/// @throws InvalidInput if sizes disagree.
std::vector<std::int32_t> refine_partition(Partition& partition, const Csr& graph, const RefinementOptions& options);

/// Only repairs the partition: no part above the bound, none empty, and on request every part connected, as far as
/// graph and balance allow.
/// @return as `refine_partition`. @throws InvalidInput if sizes disagree.
std::vector<std::int32_t> repair_partition(Partition& partition, const Csr& graph, const BalanceTarget& balance,
                                           bool contiguous);

/// Moves every connected piece of a part but the largest to the neighbouring part with which it shares most edges.
/// A piece without a neighbouring part (the graph is disconnected) stays.
/// @return number of rows moved.
std::int64_t join_islands(Partition& partition, const Csr& graph);

}  // namespace meshard
