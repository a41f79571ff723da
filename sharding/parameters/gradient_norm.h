// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/parameters/fully_shard.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Scales the gradients of all parameters by one factor, so that their common Euclidean norm is at most `max_norm`, and
/// returns the norm before. For a sharded gradient the norm is that of the whole. Pending sums are reduced first.
/// Parameters without a gradient count as zero. Sums are computed in double; every rank gets the same bits.
///
/// Collective over the axes on which gradients are sharded or pending; plain gradients must be equal on all ranks, as
/// `replicate` leaves them.
/// @throws InvalidInput if `max_norm` is not positive.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm);

/// `clip_grad_norm` for all parameters of a fully sharded module. Collective over its group.
double clip_grad_norm(const FullyShardedModule& module, double max_norm);

/// The common Euclidean norm of the plain gradients of these parameters, computed on their device without waiting for
/// it: (), double, the same bits on every rank. Undefined gradients count as zero.
/// @param parts_of   ranks that each hold other parts of the parameters, over which the call is collective; null if
///                   every rank holds whole parameters
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters, const RankGroup* parts_of);

/// Scales the gradients by min(1, max_norm / (norm + 1e-6)), without waiting for their device.
/// @param norm   the result of `gradient_norm`   @throws InvalidInput if `max_norm` is not positive.
void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& norm, double max_norm);

}  // namespace meshard
