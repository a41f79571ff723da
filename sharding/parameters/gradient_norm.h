// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// The common Euclidean norm of the plain gradients of these parameters, where they lie and without a wait for that
/// device: (), double, the same bits on every rank. Undefined ones count as zero.
/// @param parts_of   ranks of which each has other parts of the parameters; null where all have all of them. Collective
/// over these.
at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters, const RankGroup* parts_of);

/// Scales the gradients by min(1, max_norm / (norm + 1e-6)), without waiting for their device.
/// @param norm   the result of `gradient_norm`   @throws InvalidInput if `max_norm` is not positive.
void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& norm, double max_norm);

}  // namespace meshard
