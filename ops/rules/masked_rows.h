// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// index(self, {..., mask}) where every rank finds its own entries, in the whole's order: what the mask covers is cut along its first dimension of
/// more than one entry, or not at all. Ends the call, or returns false before changing anything. Collective: one small message of counts.
bool index_by_mask(RuleCall& call);

/// index_put(self, {..., mask}, values, accumulate) and its in-place forms, likewise.
bool index_put_by_mask(RuleCall& call);

}  // namespace meshard
