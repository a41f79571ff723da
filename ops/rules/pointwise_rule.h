// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// Rule of operators whose result at an index depends on their operands at that index only, after broadcasting.
/// Operands are converted to the layout of the first sharded one; pending sums stay pending if the operator is linear
/// in them. Other rules call it for pointwise cases.
void pointwise_rule(RuleCall& call);

}  // namespace meshard
