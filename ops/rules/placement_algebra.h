// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Index of a dimension counted from the front; `dim` may be negative.
inline std::int64_t from_front(std::int64_t dim, std::int64_t num_dims)
{
    return dim < 0 ? dim + num_dims : dim;
}

/// Layouts of `tensor` on all axes; Replicate for a plain one.
AxisLayouts layouts_of(const RuleCall& call, const at::Tensor& tensor);

/// Applies `f` to the dimension of each Shard.
template <class F>
AxisLayouts map_dims(AxisLayouts axes, F&& f)
{
    for (auto& axis : axes) {
        if (axis.is_shard()) axis.placement.dim = f(axis.placement.dim);
    }
    return axes;
}

/// The part of an operand that is combined with one of layout `layout` on axis `axis`: a replicated tensor is narrowed along `dim` to this rank's rows; one
/// with a single entry there stays as it is, to be broadcast, unless the other operand has one entry too.
at::Tensor narrow_operand(const RuleCall& call, const at::Tensor& local, const AxisLayout& layout, std::int64_t axis, std::int64_t dim);

/// True if any of the given dimensions of `tensor` is cut on any axis.
bool cuts_any(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims);

/// Layouts after a reduction over `dims` (all dimensions if empty): a Shard along one of them becomes a Partial, other Shards get the index of their dimension
/// in the result.
AxisLayouts reduced_layouts(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims, bool keepdim, Reduction reduction);

/// The layout of what is summed over all cut rows: pending wherever `spec` is a Shard.
SpecPtr pending_sum(const SpecPtr& spec);

}  // namespace meshard
