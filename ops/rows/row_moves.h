// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

// Whole rows taken from lists of this rank and scattered back into them, plain tensors, differentiable. On GPUs by kernels (ops/cuda/row_packing.h) that add in
// the order of the index, so that sums and gradients have the same bits every time. `index` (n), int64, may lie on another device.

/// Such an index of these numbers, on the CPU.
at::Tensor index_tensor(const std::vector<std::int64_t>& values);

/// rows[index[i]]: (num_rows, ...) to (n, ...).
at::Tensor take_rows(const at::Tensor& rows, const at::Tensor& index);

/// Zeros, but for result[index[i]] = values[i]: (n, ...) to (num_rows, ...). No row twice.
at::Tensor scatter_distinct_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows);

/// result[index[i]] += values[i], beginning with zeros: (n, ...) to (num_rows, ...).
at::Tensor scatter_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows);

}  // namespace meshard
