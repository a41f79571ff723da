// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

namespace meshard {

/// Runs a pointwise operator on the local parts, as `call.run({spec})`, such that the bits of a value do not depend on
/// its position in the part: LibTorch uses other code for the last entries, which do not fill a vector register, and
/// these depend on the sharding, on strides and on the number of threads. Here operands are copied to buffers padded to
/// whole vectors, by one thread. For exact mode: functions such as exp take about four times as long, sums of two
/// tensors seventeen times.
void run_in_whole_vectors(RuleCall& call, const SpecPtr& spec);

}  // namespace meshard
