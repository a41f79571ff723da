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
    Fast,     ///< about one and a half times as long as METIS's k-way
    Thorough  ///< several times that
};

struct RefinementOptions {
    BalanceTarget balance = {};
    RefinementEffort effort = RefinementEffort::Fast;
    /// Weight of the largest ghost count against the cut, 0 to 1.
    double ghost_share = 0.35;
    bool contiguous = false;  ///< every part in one piece, as far as the graph and the balance allow
    std::uint64_t seed = 0;
    std::optional<CutMeasures> most = {};  ///< upper bounds of both measures of the result; none: those of the start
};

/// Improves a partition: repairs it (parts above the bound, empty parts, on request disconnected parts), then
/// moves rows at the boundaries so that the cut and the largest ghost count fall (boundary_search.h).
///
/// After the repair neither the cut nor the largest ghost count (one layer) gets worse, or above `most`. The whole allowed
/// imbalance is used. Same input, options and seed: same result.
/// @return with `contiguous`, the parts that are still disconnected, ascending.
/// @throws InvalidInput if sizes disagree.
std::vector<std::int32_t> refine_partition(Partition& partition, const Csr& graph, const RefinementOptions& options);

/// The repair alone: no part above the bound, none empty, and on request every part in one piece, as far as graph and balance allow.
/// @return as `refine_partition`. @throws InvalidInput if sizes disagree.
std::vector<std::int32_t> repair_partition(Partition& partition, const Csr& graph, const BalanceTarget& balance, bool contiguous);

/// Moves every connected piece of a part but the largest to the neighbouring part with which it shares most edges.
/// A piece without a neighbouring part (the graph is disconnected) stays.
/// @return rows moved.
std::int64_t join_islands(Partition& partition, const Csr& graph);

}  // namespace meshard
