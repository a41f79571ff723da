// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Rows of `table`, (n, ...), by number: (index, ...). As `index_select`, whose CPU kernel spends more on each row than the row costs, with a
/// backward that adds in the order of the index and has itself a backward.
///
/// What has kernels on GPUs, and -1 nowhere, is `take_rows` (ops/rows/row_moves.h).
///
/// @param index   (m), int64, each in [0, n), or -1 for a row of zeros
/// @throws InvalidInput if a number is outside
at::Tensor take_some_rows(const at::Tensor& table, const at::Tensor& index);

/// The adjoint: row i of the result, of `num_rows`, is the sum of the rows e with index[e] == i, in ascending order of e; zero without any. Rows with
/// -1 are left out.
at::Tensor scatter_some_rows(const at::Tensor& rows, const at::Tensor& index, std::int64_t num_rows);

/// Rows of `table` into `target`, (index, ...), of the same type, in place and not recorded; rows with -1 keep what they hold.
void take_some_rows_into(at::Tensor& target, const at::Tensor& table, const at::Tensor& index);

}  // namespace meshard
