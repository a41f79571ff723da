// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Gathers rows of `table`, (n, ...): returns (m, ...). On the CPU faster than `index_select`, whose overhead for each
/// row exceeds the copy. Backward adds gradients in the order of the index and can itself be differentiated.
///
/// Where no index is -1, `take_rows` (ops/rows/row_moves.h) has kernels for GPUs.
///
/// @param index   (m), int64, each in [0, n), or -1 for a row of zeros
/// @throws InvalidInput if an index is out of range
at::Tensor take_some_rows(const at::Tensor& table, const at::Tensor& index);

/// The adjoint of `take_some_rows`: row i of the result is the sum of the rows e with index[e] == i, added in ascending
/// order of e, or zero. Rows with index -1 are skipped. Returns (num_rows, ...).
at::Tensor scatter_some_rows(const at::Tensor& rows, const at::Tensor& index, std::int64_t num_rows);

/// Copies rows of `table` into `target`, (m, ...), of the same type, in place and without autograd. Rows with index -1
/// keep their values.
void take_some_rows_into(at::Tensor& target, const at::Tensor& table, const at::Tensor& index);

}  // namespace meshard
