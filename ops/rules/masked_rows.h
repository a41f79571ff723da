// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// index(self, {..., mask}) in which every rank selects from its own entries, and the results have the order of the
/// whole: the dimensions of the mask must be cut along the first one with more than one entry, or not at all. Completes
/// the call, or returns false and changes nothing. Collective: one small message of counts.
bool index_by_mask(RuleCall& call);

/// The same as `index_by_mask` for index_put(self, {..., mask}, values, accumulate) and its in-place forms.
bool index_put_by_mask(RuleCall& call);

}  // namespace meshard
