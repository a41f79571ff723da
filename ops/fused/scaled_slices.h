// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_weights.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Weight and bias of slices' logits divided by the temperature of each head, which is kept within [least, most]: on
/// devices with kernels, for plain tensors of float, one kernel forward and one backward, which has no second
/// derivative; else by LibTorch's operators.
/// @param slices        (S, D), (S): the same for all heads  @param temperature   H numbers, of any shape
/// @return              (H, S, D), (H, S)
Affine<at::Tensor> slices_by_temperature(const Affine<at::Tensor>& slices, const at::Tensor& temperature, double least,
                                         double most);

}  // namespace meshard
