// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/balance_target.h"
#include "partition/cut/partition.h"

namespace meshard {

/// Moves rows from parts above their bound (`largest_weights_allowed`) to parts that are less full, boundary rows with
/// the cheapest moves first, until no part is above it or no such move is left; fills empty parts. Deterministic.
void balance_weights(Partition& partition, const Csr& graph, const BalanceTarget& balance);

/// `balance_weights` for connected parts, which stay connected: a row moves only if a walk around it shows that its
/// part is connected without it. Balances less well.
void balance_weights_of_whole_parts(Partition& partition, const Csr& graph, const BalanceTarget& balance);

/// Returns whether a part is empty although there are enough rows for all.
bool has_empty_part(const Partition& partition);

}  // namespace meshard
