// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "sharding/tensor/shard_spec.h"

namespace meshard {

// What the operators on slices share: how rows, slices and weights lie on the ranks. `rows` is null where nothing is sharded.

/// Layout of (B, H, S, ...) tokens made from rows cut as `rows`: what was cut along N is summed, batches and heads keep their cut.
SpecPtr token_spec(const ShardSpec& rows);

/// Layout of the gradient of what all rows share: a pending sum wherever they, or what is made of them, are cut.
SpecPtr weight_gradient_spec(const ShardSpec& rows);

/// Layout of the gradient of (B, ...) of which all rows of a sample take the same: a pending sum where rows are cut, cut as the samples are.
SpecPtr offset_gradient_spec(const ShardSpec& rows);

/// This rank's part of `tensor` in layout `spec`; the tensor itself if there is no layout.
at::Tensor local_in(const at::Tensor& tensor, const SpecPtr& spec);

/// The other way.
at::Tensor wrapped(const at::Tensor& local, const SpecPtr& spec);

/// Appends them, wrapped; an undefined tensor stays one.
void append_wrapped(std::vector<at::Tensor>& list, const std::vector<at::Tensor>& locals, const SpecPtr& spec);

/// Sum over the ranks among which rows are cut; `buffer` is this rank's own to write to.
void sum_over_rows(at::Tensor& buffer, const SpecPtr& rows);

/// Groups of the ranks among which rows are cut.
std::vector<const RankGroup*> row_groups(const SpecPtr& rows);

/// @throws InvalidInput while gradients are recorded, in an operator's backward.
void refuse_second_derivative(const char* where);

}  // namespace meshard
