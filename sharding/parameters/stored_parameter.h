// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshard {

/// A stored parameter is not in memory: the tensor has shape, type and device, and every operator that reads it
/// (dispatch key PrivateUse3, below autograd and above sharded tensors) calls `gather` for its value. Views of it are
/// stored likewise. Hence what autograd saves, the parameter or a transposed view of it, holds no memory.
///
/// Its values, flattened, lie on the ranks as a sharded tensor of one dimension. `copy_` of a whole value, the same on
/// all ranks, writes this rank's part; without recording, as `load_state_dict` calls it, and not collective.

/// Turns a tensor into a stored one, in place, for all that share its TensorImpl. Its memory is freed unless others
/// share it. `gather` must return a plain value of the tensor's shape, which is not written to, and `flat` the
/// flattened value as a sharded tensor.
void store_parameter(const at::Tensor& parameter, std::function<at::Tensor()> gather, std::function<at::Tensor()> flat);

/// A stored tensor of that shape, such as an optimiser's state of a whole parameter, of flattened values that are
/// sharded.
at::Tensor stored_tensor(const at::Tensor& flat, at::IntArrayRef shape);

bool is_stored(const at::Tensor& tensor);

/// The flattened values of a stored tensor, sharded; they share memory with it. Undefined for views but `detach`.
at::Tensor flat_values(const at::Tensor& stored);

}  // namespace meshard
