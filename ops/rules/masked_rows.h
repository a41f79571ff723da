// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// index(self, {..., mask}) in which every rank selects from its own entries and the order is that of the whole: the dimensions that the mask covers are cut
/// along the first one of more than one entry, or not at all. Completes the call, or returns false without a change. Collective: one small message of counts.
bool index_by_mask(RuleCall& call);

/// The same for index_put(self, {..., mask}, values, accumulate) and its in-place forms.
bool index_put_by_mask(RuleCall& call);

}  // namespace meshard
