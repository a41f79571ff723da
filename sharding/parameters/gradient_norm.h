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

/// The common Euclidean norm of the plain gradients of these parameters, where they lie and without a wait for that device: (), double, the same bits on every
/// rank. Undefined ones count as zero.
/// @param parts_of   ranks of which each has other parts of the parameters; null where all have all of them. Collective over these.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters, const RankGroup* parts_of);

/// Scales those gradients by min(1, max_norm / (norm + 1e-6)), without a wait for their device.
/// @param norm   as `gradient_norm` gives it   @throws InvalidInput if `max_norm` is not positive.
void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& norm, double max_norm);

}  // namespace meshard
