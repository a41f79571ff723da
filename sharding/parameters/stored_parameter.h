// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// A parameter that is not in memory: it shows shape, type and device, and every operator that meets it (dispatch key PrivateUse3,
/// below autograd and above sharded tensors) asks `gather` for its value and works on that. Views of it are stored likewise: they ask
/// when they are used. So what autograd saves, the parameter or a transposed view of it, holds nothing.

/// Turns the tensor, in place, into a stored one; all that share its TensorImpl see it. Its memory is freed unless others share it. The
/// value that `gather` returns is plain and has the tensor's shape; it is not written to.
void store_parameter(const at::Tensor& parameter, std::function<at::Tensor()> gather);

bool is_stored(const at::Tensor& tensor);

}  // namespace meshard
