// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

// Layouts of rows, slices and weights in the operators on slices. `rows` is the layout of the points; null if nothing
// is sharded.

/// Layout of the tokens (B, H, S, ...) of rows with layout `rows`: Replicate if N is sharded (the sums are complete);
/// batches and heads stay sharded.
SpecPtr token_spec(const ShardSpec& rows);

/// Layout of the gradient of a tensor that all rows share: a pending sum on every axis on which rows, or tensors made
/// from them, are sharded.
SpecPtr weight_gradient_spec(const ShardSpec& rows);

/// Layout of the gradient of a tensor (B, ...) that all rows of a sample share: a pending sum if rows are sharded, and
/// sharded along B like the samples.
SpecPtr offset_gradient_spec(const ShardSpec& rows);

/// This rank's part of `tensor` in layout `spec`; the tensor itself if `spec` is null.
at::Tensor local_in(const at::Tensor& tensor, const SpecPtr& spec);

/// The inverse of `local_in`: a sharded tensor with this local part; the tensor itself if `spec` is null.
at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec);

/// Appends the tensors, wrapped in this layout; undefined ones stay undefined.
void append_wrapped(std::vector<at::Tensor>& list, const std::vector<at::Tensor>& locals, const SpecPtr& spec);

/// Adds `buffer` in place over the ranks over which rows are sharded; no other tensor may share its memory.
void sum_over_rows(at::Tensor& buffer, const SpecPtr& rows);

/// The groups of ranks over which rows are sharded.
std::vector<const RankGroup*> row_groups(const SpecPtr& rows);

/// To be called in an operator's backward. @throws InvalidInput while gradients are recorded.
void refuse_second_derivative(const char* where);

}  // namespace meshard
