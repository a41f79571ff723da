// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/parameters/fully_shard.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Scales the gradients of all parameters by one factor, so that their common Euclidean norm is at most `max_norm`, and returns the
/// norm that they had. The norm is that of the whole: of a sharded gradient the parts of all ranks count, each once. Pending sums are
/// reduced first. Parameters without a gradient count as zero. Sums run in double; every rank gets the same bits.
///
/// Collective over the axes on which gradients are cut or pending; plain gradients must be the same on every rank, as `replicate`
/// leaves them.
/// @throws InvalidInput if `max_norm` is not positive.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm);

/// The same for all parameters of a fully sharded module, none of which any rank holds whole. Collective over its group.
double clip_grad_norm(const FullyShardedModule& module, double max_norm);

}  // namespace meshard
