// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/balance_target.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <span>

namespace meshard {

struct ScotchOptions {
    std::int32_t num_parts = 1;
    std::int32_t seed = 0;
    BalanceTarget balance = {};  ///< several weights are added: Scotch balances one
    /// For each entry of the graph the positive cost of cutting it; or empty.
    std::span<const std::int32_t> edge_weights = {};
};

/// Returns whether this build has Scotch.
bool has_scotch();

/// Scotch's partition of the rows of `graph` (Pellegrini and Roman 1996), with 64-bit indices: no graph is too large.
///
/// Takes about three times METIS's time and often cuts less. Parts left empty or above the bound are repaired as in
/// `partition_with_metis`. The same graph, options and seed give the same partition.
/// @throws InvalidInput if num_parts < 1, the balance does not fit, or this build lacks Scotch.
Partition partition_with_scotch(const Csr& graph, const ScotchOptions& options);

}  // namespace meshard
