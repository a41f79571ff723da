// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// The clouds of a batch, (B, N, C) to B of (N, C), with the global ids that their rows have: what searches and graphs take. A cut along dimension 1
/// becomes one along dimension 0. Differentiable; no communication, unless sums are pending.
///
/// @param where, what   begin the message of an error and name the tensor in it
/// @throws InvalidInput for another number of dimensions, and for other cuts
std::vector<at::Tensor> unbind_clouds(const char* where, const char* what, const at::Tensor& batch);

}  // namespace meshard
