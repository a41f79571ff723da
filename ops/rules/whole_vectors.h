// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// Runs a pointwise operator on the local parts, as `call.run({spec})` does, such that the bits of a value do not depend on where in its part it stands:
/// LibTorch computes what does not fill a vector in other ways than what does, and which entries these are depends on how rows are cut, on strides
/// and on the number of threads. Here operands are copied into lines that fill vectors, by one thread. For exact mode: functions such as exp take about four times
/// as long, sums of two tensors seventeen times.
void run_in_whole_vectors(RuleCall& call, const SpecPtr& spec);

}  // namespace meshard
