// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Splits a batch (B, N, C) into its B clouds (N, C), which keep the global ids of their rows, for searches and graphs.
/// A sharding along dimension 1 becomes one along dimension 0. Differentiable; no communication unless sums are
/// pending.
///
/// @param where, what   start of error messages, and the tensor's name in them
/// @throws InvalidInput for another number of dimensions, and for other shardings
std::vector<at::Tensor> unbind_clouds(const char* where, const char* what, const at::Tensor& batch);

}  // namespace meshard
