// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/rule_table.h"

#include <c10/core/WrapDimMinimal.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

namespace meshard {

/// Index of a dimension counted from the front; `dim` may be negative. A single number counts as one dimension.
/// @throws LibTorch's error if the dimension does not exist
inline std::int64_t from_front(std::int64_t dim, std::int64_t num_dims)
{
    return c10::maybe_wrap_dim(dim, num_dims);
}

/// `from_front`, or nothing if the dimension does not exist: the operator then throws its own error.
inline std::optional<std::int64_t> existing_dim(std::int64_t dim, std::int64_t num_dims)
{
    return dim < -num_dims || dim >= num_dims ? std::nullopt : std::make_optional(from_front(dim, num_dims));
}

/// Returns whether every rank holds the whole of dimension `dim` of a sharded tensor.
inline bool is_whole(const at::Tensor& tensor, std::int64_t dim)
{
    return spec_of(tensor)->axis_of_dim(dim) < 0;
}

/// Returns whether the sum of numbers that are converted is their converted sum, up to rounding: types of floating
/// numbers that hold those of the other. Whole numbers wrap around or lose digits.
bool keeps_sums(at::ScalarType from, at::ScalarType to);

/// Runs a sum over rows, with the argument `dtype` at `dtype_arg` (-1: none), that stays pending on the axes of `spec`
/// that say so. Those of float16 are computed in float and reduced at once: ranks' shares may exceed what it holds.
void run_sum(RuleCall& call, const SpecPtr& spec, std::int64_t dtype_arg);

/// Returns whether a sum times `factor`, or divided by it, is the sum of its terms' products. It is not where the
/// factor is infinite, or a divisor zero: a rank whose term is zero would have NaN. Factors on an accelerator are not
/// looked at, since the host would have to wait for them.
bool distributes(const at::Tensor& factor, bool divides);

/// Layouts of `tensor` on all axes; Replicate for a plain one.
AxisLayouts layouts_of(const RuleCall& call, const at::Tensor& tensor);

/// Reduces what is pending of `tensor` but sums.
void keep_sums_only(const RuleCall& call, const at::Tensor& tensor);

/// Applies `f` to the dimension of each Shard.
template <class F>
AxisLayouts map_dims(AxisLayouts axes, F&& f)
{
    for (auto& axis : axes) {
        if (axis.is_shard()) axis.placement.dim = f(axis.placement.dim);
    }
    return axes;
}

/// `spec` with these axes; `spec` itself if it has them.
inline SpecPtr with_axes(const SpecPtr& spec, const AxisLayouts& axes)
{
    return axes == spec->axes ? spec : make_spec(spec->device_mesh, axes);
}

/// `spec` with `f` applied to the dimension of each Shard.
template <class F>
SpecPtr with_dims(const SpecPtr& spec, F&& f)
{
    return with_axes(spec, map_dims(spec->axes, f));
}

/// The part of an operand that is combined with one of layout `layout` on axis `axis`: a replicated tensor is narrowed
/// along `dim` to this rank's rows; one with a single entry there is left to broadcasting, unless the other operand has
/// one entry too.
at::Tensor narrow_operand(const RuleCall& call, const at::Tensor& local, const AxisLayout& layout, std::int64_t axis,
                          std::int64_t dim);

/// Returns whether `tensor` is cut along any of the given dimensions on any axis.
bool cuts_any(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims);

/// The layouts after a reduction over `dims` (all if empty): a Shard along one of them becomes a Partial; other Shards
/// get the index of their dimension in the result.
AxisLayouts reduced_layouts(AxisLayouts axes, c10::ArrayRef<std::int64_t> dims, bool keepdim, Reduction reduction);

/// The layout of a sum over all cut rows: pending wherever `spec` is a Shard.
SpecPtr pending_sum(const SpecPtr& spec);

/// Returns whether two Shards divide the same number of rows in the same way, possibly along different dimensions.
bool same_rows(const AxisLayout& a, const AxisLayout& b);

}  // namespace meshard
