// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

// Gathers and scatters whole rows of plain tensors by local index, differentiable. Kernels on GPUs
// (ops/cuda/row_packing.h) add in the order of the index, so that sums and gradients have the same bits every time.
// `index` (n), int64, may be on another device.

/// The values as an index tensor, on the CPU.
at::Tensor index_tensor(const std::vector<std::int64_t>& values);

/// rows[index[i]]: (num_rows, ...) to (n, ...).
at::Tensor take_rows(const at::Tensor& rows, const at::Tensor& index);

/// Zeros, except result[index[i]] = values[i]: (n, ...) to (num_rows, ...). Indices must be unique.
at::Tensor scatter_distinct_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows);

/// Zeros, with values[i] added to result[index[i]] for each i: (n, ...) to (num_rows, ...).
at::Tensor scatter_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows);

}  // namespace meshard
