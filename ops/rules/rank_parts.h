// SPDX-License-Identifier: Apache-2.0
// For rules that combine the ranks of a cut dimension: parts of all ranks, merged statistics, gathered dimensions.
#pragma once

#include "ops/rules/placement_algebra.h"
#include "sharding/ranks/type_limits.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace meshard {

/// Converts a tensor to these layouts in one step; a plain one is taken as Replicate, and stays plain if the layouts
/// are Replicate. Collective over the axes that change.
at::Tensor with_layouts(const RuleCall& call, const at::Tensor& tensor, const AxisLayouts& axes);

/// Gathers the given dimensions on every rank; other dimensions stay sharded. Pending sums must be reduced before.
at::Tensor with_whole_dims(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims);

/// The tensor's layouts with each Shard along one of `dims` moved to the longest other dimension that is not sharded,
/// so that no rank holds more than its share; Replicate if there is none.
AxisLayouts layouts_off_dims(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims);

/// The tensor with dimension `dim` whole on every rank, sharded along another dimension (`layouts_off_dims`). One
/// message.
at::Tensor with_whole_lines(const RuleCall& call, const at::Tensor& tensor, std::int64_t dim);

/// Axes on which `tensor` is sharded along one of `dims`.
std::vector<std::int64_t> axes_cutting(const RuleCall& call, const at::Tensor& tensor,
                                       c10::ArrayRef<std::int64_t> dims);

/// The same layouts with every Shard along one of `dims`, and every Partial, replaced by `other`.
AxisLayouts replaced(AxisLayouts axes, c10::ArrayRef<std::int64_t> dims, const AxisLayout& other);

/// Returns whether two axes are Shards of the same dimension.
bool cut_one_dim_twice(const AxisLayouts& axes);

/// All of `0 .. num_dims - 1` if `dims` is empty, else `dims` counted from the front.
std::vector<std::int64_t> dims_or_all(c10::IntArrayRef dims, std::int64_t num_dims);

/// The tensors of all ranks of an axis (all of one shape) stacked along a new dimension 0.
at::Tensor parts_of_all(const RuleCall& call, std::int64_t axis, const at::Tensor& local);

/// Index of a missing candidate: larger than all others, so that it is not chosen among equal values.
inline constexpr auto kNoIndex = std::numeric_limits<std::int64_t>::max();

/// Chooses among the candidates of all ranks of an axis the largest (or smallest) value, where NaN takes precedence;
/// among equal values the one with the lowest index, as the plain operator does. In place.
void merge_extremes(const RuleCall& call, std::int64_t axis, bool max, at::Tensor& values, at::Tensor& indices);

/// Adds `local` over the ranks of these axes, in place.
void sum_over_axes(const RuleCall& call, c10::ArrayRef<std::int64_t> axes, at::Tensor& local);

/// Positions in the whole of the rows that rank `coordinate` holds: int64, ascending.
at::Tensor positions_in_whole(const AxisLayout& layout, std::int64_t coordinate, const at::Device& device);

/// Returns whether a tensor of this type may be a pending sum.
inline bool can_sum(const at::Tensor& tensor)
{
    const auto type = tensor.scalar_type();
    return (at::isFloatingType(type) && !c10::isFloat8Type(type)) || at::isComplexType(type);
}

/// Mean and variance (divided by the count) over `dims`, which are kept with size one.
struct Moments {
    at::Tensor mean, variance;
};

/// Moments of the whole along `dims`, in double (merged as in Chan et al. 1983): one message with two numbers for each
/// result, for each axis that cuts one of `dims`. `axes` are the layouts of `local`; ranks without rows have weight
/// zero.
Moments moments_over(const RuleCall& call, const at::Tensor& local, const AxisLayouts& axes, c10::IntArrayRef dims);

}  // namespace meshard
