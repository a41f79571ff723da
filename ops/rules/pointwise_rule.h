// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// Rule of operators whose result at an index depends on their operands at that index only, after broadcasting. Operands are converted to the layout of
/// the first that is cut; pending sums stay pending where the operator is linear in them. Other rules call it for cases that are pointwise.
void pointwise_rule(RuleCall& call);

}  // namespace meshard
