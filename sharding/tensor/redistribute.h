// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Converts a tensor to another layout, below autograd. Collective over the axes whose layout changes.
///
/// Shard to Replicate is an all-gather, Shard to another Shard an all-to-all, both of exact sizes; a Partial is reduced
/// in its own type, or in float for narrower types. @throws InvalidInput if the target is a Partial where the source is
/// not.
at::Tensor convert(const at::Tensor& tensor, const SpecPtr& target);

/// Reduces every Partial axis of every tensor and replaces its local part by the result, with one message for all
/// tensors of the same type and axes. Other tensors are not changed.
void reduce_partials(c10::ArrayRef<at::Tensor> tensors);

/// The part of a replicated local tensor that `layout` gives to rank `coordinate` of its axis; a view if possible.
at::Tensor narrow_to_shard(const at::Tensor& local, const AxisLayout& layout, std::int64_t coordinate);

/// The part of the plain tensor `whole` that this rank holds in the layout `spec`; a view if possible.
at::Tensor own_part(const at::Tensor& whole, const ShardSpec& spec);

}  // namespace meshard
