// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/balance_target.h"
#include "partition/csr.h"
#include "partition/cut/partition.h"

namespace meshard {

/// Moves rows until no part is above `most_weight` (`largest_weights_allowed`) as far as that can be reached by moving
/// boundary rows to parts that are less full, with the cheapest moves first; fills empty parts. Deterministic.
void balance_weights(Partition& partition, const Csr& graph, const BalanceTarget& balance);

/// The same for parts that are each in one piece, and stay so: only rows move whose part does not fall apart without
/// them, as far as a walk around them shows. Reaches less than `balance_weights` does.
void balance_weights_of_whole_parts(Partition& partition, const Csr& graph, const BalanceTarget& balance);

/// Whether a part is empty though there are rows enough for all.
bool has_empty_part(const Partition& partition);

} // namespace meshard
