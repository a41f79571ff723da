// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// The same value in another layout, below autograd. Collective over the axes whose layout changes.
///
/// Shard to Replicate gathers exact sizes; Shard to another Shard is one all-to-all of exact sizes; a Partial is reduced, in its own
/// type or in float for narrower ones. @throws InvalidInput if the target is a Partial where the source is none.
at::Tensor convert(const at::Tensor& tensor, const SpecPtr& target);

/// Reduces every Partial axis of every tensor and replaces its local part by the result: one message for all tensors of the same type and axes. Other tensors
/// stay as they are.
void reduce_partials(c10::ArrayRef<at::Tensor> tensors);

/// The part of a replicated local tensor that `layout` gives to rank `coordinate` of its axis. A view where possible.
at::Tensor narrow_to_shard(const at::Tensor& local, const AxisLayout& layout, std::int64_t coordinate);

/// The part of `whole`, a plain tensor, that this rank holds in a layout: cut along every Shard. A view where possible.
at::Tensor own_part(const at::Tensor& whole, const ShardSpec& spec);

}  // namespace meshard
