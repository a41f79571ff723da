// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/rank_parts.h"

#include "partition/lists.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace meshard {

at::Tensor with_layouts(const RuleCall& call, const at::Tensor& tensor, const AxisLayouts& axes)
{
    const bool replicates = std::ranges::all_of(axes, [](const AxisLayout& axis) { return axis.is_replicate(); });
    if (!is_sharded(tensor) && replicates) return tensor;
    const auto source = is_sharded(tensor) ? tensor : wrap(tensor, call.replicated());
    if (spec_of(source)->axes == axes) return source;
    return convert(source, make_spec(call.device_mesh(), axes, spec_of(source)->index_map));
}

at::Tensor with_whole_dims(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims)
{
    if (!cuts_any(call, tensor, dims)) return tensor;
    return with_layouts(call, tensor, replaced(layouts_of(call, tensor), dims, {}));
}

AxisLayouts layouts_off_dims(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims)
{
    auto axes = layouts_of(call, tensor);
    for (const auto a : call.axes()) {
        if (!axes[a].is_shard() || !contains(dims, axes[a].placement.dim)) continue;
        std::int64_t longest = -1;
        for (std::int64_t d = 0; d < tensor.dim(); ++d) {
            const bool taken = contains(dims, d) || std::ranges::any_of(axes, [&](const auto& axis) {
                                   return axis.is_shard() && axis.placement.dim == d;
                               });
            if (!taken && tensor.size(d) > 1 && (longest < 0 || tensor.size(d) > tensor.size(longest))) longest = d;
        }
        axes[a] = {};
        if (longest >= 0) {
            axes[a] = {Shard(longest),
                       std::make_shared<Extents>(even_extents(tensor.size(longest), call.device_mesh()->size(a))), 1};
        }
    }
    return axes;
}

at::Tensor with_whole_lines(const RuleCall& call, const at::Tensor& tensor, std::int64_t dim)
{
    return with_layouts(call, tensor, layouts_off_dims(call, tensor, {dim}));
}

std::vector<std::int64_t> axes_cutting(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims)
{
    std::vector<std::int64_t> axes;
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(tensor, axis);
        if (layout.is_shard() && contains(dims, layout.placement.dim)) axes.push_back(axis);
    }
    return axes;
}

AxisLayouts replaced(AxisLayouts axes, c10::ArrayRef<std::int64_t> dims, const AxisLayout& other)
{
    for (auto& axis : axes) {
        if (axis.is_partial() || (axis.is_shard() && contains(dims, axis.placement.dim))) axis = other;
    }
    return axes;
}

bool cut_one_dim_twice(const AxisLayouts& axes)
{
    for (std::size_t a = 0; a < axes.size(); ++a) {
        for (std::size_t b = 0; b < a; ++b) {
            if (axes[a].is_shard() && axes[b].is_shard() && axes[a].placement.dim == axes[b].placement.dim) return true;
        }
    }
    return false;
}

std::vector<std::int64_t> dims_or_all(c10::IntArrayRef dims, std::int64_t num_dims)
{
    std::vector<std::int64_t> all(dims.empty() ? num_dims : std::ssize(dims));
    if (dims.empty()) std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = 0; i < dims.size(); ++i) all[i] = from_front(dims[i], num_dims);
    return all;
}

at::Tensor parts_of_all(const RuleCall& call, std::int64_t axis, const at::Tensor& local)
{
    const std::vector<std::int64_t> ones(call.device_mesh()->size(axis), 1);
    return call.device_mesh()->group(axis).all_gather_rows(local.contiguous().unsqueeze(0), ones);
}

void merge_extremes(const RuleCall& call, std::int64_t axis, bool max, at::Tensor& values, at::Tensor& indices)
{
    if (call.device_mesh()->size(axis) == 1 || values.numel() == 0) return;
    const auto all_values = parts_of_all(call, axis, values), all_indices = parts_of_all(call, axis, indices);
    values = max ? all_values.amax(0) : all_values.amin(0);
    const auto wins = all_values.eq(values).logical_or_(all_values.isnan());
    indices = all_indices.masked_fill(wins.logical_not(), kNoIndex).amin(0);
}

void sum_over_axes(const RuleCall& call, c10::ArrayRef<std::int64_t> axes, at::Tensor& local)
{
    for (const auto axis : axes) call.device_mesh()->group(axis).all_reduce(local);
}

at::Tensor positions_in_whole(const AxisLayout& layout, std::int64_t coordinate, const at::Device& device)
{
    const auto options = at::TensorOptions(at::kLong).device(device);
    const auto first = layout.offset(coordinate);
    const auto rows = at::arange(first, first + (*layout.extents)[coordinate], options);
    if (layout.blocks == 1) return rows;
    return (at::arange(layout.blocks, options).unsqueeze(1) * layout.total() + rows).reshape({-1});
}

Moments moments_over(const RuleCall& call, const at::Tensor& local, const AxisLayouts& axes, c10::IntArrayRef dims)
{
    auto shape = local.sizes().vec();
    bool empty = false;
    for (const auto dim : dims) {
        empty |= shape[dim] == 0;
        shape[dim] = 1;
    }
    Moments moments;
    if (empty) {
        moments.mean = at::zeros(shape, local.options().dtype(at::kDouble));
        moments.variance = at::zeros_like(moments.mean);
    } else {
        const auto [variance, mean] = at::var_mean(local.to(sum_type(local.scalar_type())),
                                                   at::OptionalIntArrayRef(dims), /*correction=*/0, /*keepdim=*/true);
        moments = {mean.to(at::kDouble), variance.to(at::kDouble)};
    }
    for (std::size_t a = 0; a < axes.size(); ++a) {
        if (!axes[a].is_shard() || !contains(dims, axes[a].placement.dim)) continue;
        // (ranks, 2, ...).
        const auto parts =
            parts_of_all(call, static_cast<std::int64_t>(a), at::stack({moments.mean, moments.variance}));
        const auto total = static_cast<double>(axes[a].total());
        at::Tensor mean = at::zeros_like(moments.mean), variance = at::zeros_like(mean);
        for (std::int64_t r = 0; r < parts.size(0); ++r)
            mean.add_(parts[r][0], static_cast<double>((*axes[a].extents)[r]) / total);
        for (std::int64_t r = 0; r < parts.size(0); ++r) {
            variance.add_(parts[r][1] + (parts[r][0] - mean).square(),
                          static_cast<double>((*axes[a].extents)[r]) / total);
        }
        moments = {mean, variance};
    }
    return moments;
}

}  // namespace meshard
