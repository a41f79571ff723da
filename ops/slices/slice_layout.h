// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

// Layouts of rows, slices and weights in the operators on slices. `rows` is the layout of the points; null if nothing is sharded.

/// Layout of the tokens (B, H, S, ...) made from rows with layout `rows`: Replicate where N is cut (the sums are complete), batches and heads keep their cut.
SpecPtr token_spec(const ShardSpec& rows);

/// Layout of the gradient of a tensor that all rows share: a pending sum on every axis where rows, or tensors made from them, are cut.
SpecPtr weight_gradient_spec(const ShardSpec& rows);

/// Layout of the gradient of a tensor (B, ...) that all rows of a sample share: a pending sum where rows are cut, and cut along B as the samples are.
SpecPtr offset_gradient_spec(const ShardSpec& rows);

/// This rank's part of `tensor` in layout `spec`; the tensor itself if there is no layout.
at::Tensor local_in(const at::Tensor& tensor, const SpecPtr& spec);

/// The inverse of `local_in`: a sharded tensor with this local part; the tensor itself if there is no layout.
at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec);

/// Appends the tensors, wrapped in this layout; undefined ones stay undefined.
void append_wrapped(std::vector<at::Tensor>& list, const std::vector<at::Tensor>& locals, const SpecPtr& spec);

/// Sums `buffer` in place over the ranks among which rows are cut; no other tensor may share its memory.
void sum_over_rows(at::Tensor& buffer, const SpecPtr& rows);

/// The groups of ranks among which rows are cut.
std::vector<const RankGroup*> row_groups(const SpecPtr& rows);

/// @throws InvalidInput while gradients are recorded, in an operator's backward.
void refuse_second_derivative(const char* where);

}  // namespace meshard
