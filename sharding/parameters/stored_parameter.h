// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// A stored parameter is not in memory: the tensor has shape, type and device, and every operator that reads it
/// (dispatch key PrivateUse3, below autograd and above sharded tensors) calls `gather` for its value. Views of it are
/// stored likewise. Hence what autograd saves, the parameter or a transposed view of it, holds no memory.

/// Turns a tensor into a stored one, in place, for all that share its TensorImpl. Its memory is freed unless others
/// share it. `gather` must return a plain value of the tensor's shape, which is not written to.
void store_parameter(const at::Tensor& parameter, std::function<at::Tensor()> gather);

bool is_stored(const at::Tensor& tensor);

}  // namespace meshard
