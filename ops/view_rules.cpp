// SPDX-License-Identifier: Apache-2.0
// Operators that rename, split, join or select dimensions; no number changes.
#include <ATen/ATen.h>
#include <ATen/InferSize.h>

#include <algorithm>
#include <numeric>

#include "ops/placement_algebra.h"

namespace meshard {
namespace {

std::int64_t product_of(c10::IntArrayRef sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()); }

/// How a cut lies after the whole is seen in another shape, or nothing if it cannot be said.
///
/// The cut dimension is (blocks, rows); with the dimensions before it the whole is (outer, rows, inner) where every outer index is cut in the
/// same way. In the new shape some dimension j must begin inside `outer` and hold whole rows: then j is (outer / before_j, rows', ...), each
/// rank's rows being counted in units of what lies behind j.
std::optional<AxisLayout> layout_in_shape(const AxisLayout& layout, c10::IntArrayRef from, c10::IntArrayRef to)
{
    const auto dim = layout.placement.dim;
    const auto outer = product_of(from.slice(0, dim)) * layout.blocks;
    const auto inner = product_of(from.slice(dim + 1));
    std::optional<AxisLayout> best;
    std::int64_t before = 1;
    for (std::size_t j = 0; j < to.size(); before *= to[j], ++j) {
        const auto behind = product_of(to.slice(j + 1));
        if (outer % before != 0 || to[j] * behind * before != outer * layout.total() * inner) continue;
        auto extents = std::make_shared<Extents>();
        std::int64_t sum = 0;
        bool whole = true;
        for (const auto extent : *layout.extents) {
            whole &= extent * inner % behind == 0;
            extents->push_back(extent * inner / behind);
            sum += extents->back();
        }
        if (!whole || outer / before * sum != to[j]) continue;
        // A single row fits wherever a size of one stands. The last dimension that keeps rows as they are is taken, so that (B, 1, C)
        // stays cut along its rows on the way to (B, C) and back.
        const bool same_rows = *extents == *layout.extents;
        if (best && !same_rows) continue;
        best = layout;
        best->placement.dim = static_cast<std::int64_t>(j);
        best->blocks = outer / before;
        if (!same_rows) best->extents = std::move(extents);
    }
    return best;
}

void reshape_to(RuleCall& call, std::vector<std::int64_t> shape)
{
    const auto tensor = call.tensor(0);
    shape = at::infer_size(shape, tensor.numel());
    auto axes = layouts_of(call, tensor);
    auto local_shape = shape;
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        if (!axes[axis].is_shard()) continue;
        std::optional<AxisLayout> layout;
        if (tensor.numel() > 0) {
            layout = layout_in_shape(axes[axis], tensor.sizes(), shape);
        } else if (std::equal(shape.begin(), shape.end(), tensor.sizes().begin(), tensor.sizes().end())) {
            layout = axes[axis];
        }
        if (!layout) return gathered_rule(call);
        for (std::int64_t other = 0; other < axis; ++other) {
            if (axes[other].is_shard() && axes[other].placement.dim == layout->placement.dim) return gathered_rule(call);
        }
        axes[axis] = *layout;
        local_shape[layout->placement.dim] = layout->blocks * (*layout->extents)[call.coordinate(axis)];
    }
    const auto& local = local_of(tensor);
    if (product_of(local_shape) != local.numel()) return gathered_rule(call);
    // A view where the local strides allow one; what the whole's strides promised is about the whole.
    call.finish({wrap(local.reshape(local_shape), call.spec(axes))});
}

void view(RuleCall& call)
{
    if (call.schema().overload_name() == "dtype") return replicated_rule(call);
    reshape_to(call, call.arg(1).toIntVector());
}

/// Dimension i of the result is dimension order[i] of the input.
void permute_to(RuleCall& call, const std::vector<std::int64_t>& order)
{
    const auto tensor = call.tensor(0);
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return std::find(order.begin(), order.end(), dim) - order.begin(); });
    std::vector<std::int64_t> strides;
    for (const auto dim : order) strides.push_back(tensor.stride(dim));
    call.finish({wrap(local_of(tensor).permute(order), call.spec(axes), strides)});
}

std::vector<std::int64_t> swapped(std::int64_t num_dims, std::int64_t a, std::int64_t b)
{
    std::vector<std::int64_t> order(num_dims);
    std::iota(order.begin(), order.end(), 0);
    if (num_dims > 1) std::swap(order[a], order[b]);
    return order;
}

void transpose(RuleCall& call)
{
    const auto num_dims = call.tensor(0).dim();
    permute_to(call, swapped(num_dims, from_front(call.arg(1).toInt(), num_dims), from_front(call.arg(2).toInt(), num_dims)));
}

void t(RuleCall& call) { permute_to(call, swapped(call.tensor(0).dim(), 0, 1)); }

void permute(RuleCall& call)
{
    auto order = call.arg(1).toIntVector();
    for (auto& dim : order) dim = from_front(dim, call.tensor(0).dim());
    permute_to(call, order);
}

void expand(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto shape = call.arg(1).toIntVector();
    const auto added = static_cast<std::int64_t>(shape.size()) - tensor.dim();
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return dim + added; });
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        if (!axes[axis].is_shard()) continue;
        const auto dim = axes[axis].placement.dim;
        if (shape[dim] != -1 && shape[dim] != tensor.size(dim - added)) return gathered_rule(call);
        shape[dim] = local_of(tensor).size(dim - added);
    }
    call.make_local();
    call.arg(1) = shape;
    call.run({call.spec(axes)});
}

void unsqueeze(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto at = from_front(call.arg(1).toInt(), tensor.dim() + 1);
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return dim >= at ? dim + 1 : dim; });
    call.make_local();
    call.run({call.spec(axes)});
}

/// squeeze(self), squeeze(self, dim), squeeze(self, dims): by the whole's sizes, not by those of this rank.
void squeeze(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    std::vector<std::int64_t> dims;
    if (call.num_args() == 1) {
        dims.resize(tensor.dim());
        std::iota(dims.begin(), dims.end(), 0);
    } else if (call.arg(1).isInt()) {
        dims = {call.arg(1).toInt()};
    } else {
        dims = call.arg(1).toIntVector();
    }
    std::vector<std::int64_t> removed, shape;
    for (const auto dim : dims) {
        const auto d = from_front(dim, tensor.dim());
        if (d >= 0 && d < tensor.dim() && tensor.size(d) == 1) removed.push_back(d);
    }
    if (cuts_any(call, tensor, removed)) return gathered_rule(call);
    const auto& local = local_of(tensor);
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        if (std::find(removed.begin(), removed.end(), dim) == removed.end()) shape.push_back(local.size(dim));
    }
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) {
        return dim - std::count_if(removed.begin(), removed.end(), [&](std::int64_t d) { return d < dim; });
    });
    call.finish({wrap(local.reshape(shape), call.spec(axes))});
}

/// Operators that work within one dimension, given as argument 1, and leave the others alone: slice, narrow, split, flip, ...
void within_dim(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    std::int64_t arg = -1;
    for (std::int64_t i = 1; i < call.num_args(); ++i) {
        if (call.schema().arguments()[i].name() == "dim") arg = i;
    }
    const auto dim = from_front(call.arg(arg).toInt(), tensor.dim());
    if (cuts_any(call, tensor, {dim})) return gathered_rule(call);
    const auto spec = spec_of(tensor);
    call.make_local();
    call.run({spec});
}

/// select, unbind: the dimension goes.
void remove_dim(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto removed = from_front(call.arg(1).toInt(), tensor.dim());
    if (cuts_any(call, tensor, {removed})) return gathered_rule(call);
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return dim > removed ? dim - 1 : dim; });
    call.make_local();
    call.run({call.spec(axes)});
}

/// slice_backward(grad, input_sizes, dim, ...), select_backward(grad, input_sizes, dim, index): zeros of the input's shape with the gradient in place.
void into_zeros(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto sizes = call.arg(1).toIntVector();
    const auto dim = from_front(call.arg(2).toInt(), static_cast<std::int64_t>(sizes.size()));
    const bool inserted = call.name() == "aten::select_backward";
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t d) { return inserted && d >= dim ? d + 1 : d; });
    auto local_sizes = sizes;
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        if (!axes[axis].is_shard()) continue;
        const auto cut = axes[axis].placement.dim;
        if (cut == dim) return gathered_rule(call);
        local_sizes[cut] = axes[axis].blocks * (*axes[axis].extents)[call.coordinate(axis)];
    }
    call.make_local();
    call.arg(1) = local_sizes;
    call.run({call.spec(axes)});
}

/// cat(tensors, dim) and stack(tensors, dim): the operands are brought into one layout.
void join(RuleCall& call)
{
    auto tensors = call.tensor_list(0);
    const bool stacks = call.name() == "aten::stack";
    const auto is_empty_legacy = [&](const at::Tensor& tensor) { return !stacks && tensor.dim() == 1 && tensor.size(0) == 0; };
    std::erase_if(tensors, [&](const at::Tensor& tensor) { return is_empty_legacy(tensor) && tensors.size() > 1; });
    const auto num_dims = tensors[0].dim() + (stacks ? 1 : 0);
    const auto dim = from_front(call.arg(1).toInt(), num_dims);

    bool mixed = false;   // pending beside others: complete all
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        std::size_t pending = 0;
        for (const auto& tensor : tensors) pending += call.layout(tensor, axis).is_partial();
        mixed |= pending > 0 && pending < tensors.size();
        for (const auto& tensor : tensors) {
            mixed |= pending > 0 && call.layout(tensor, axis).placement.reduction != call.layout(tensors[0], axis).placement.reduction;
        }
    }
    if (mixed) call.reduce(tensors);

    c10::SmallVector<AxisLayout, 2> axes(call.num_axes());
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        for (const auto& tensor : tensors) {
            if (!call.layout(tensor, axis).is_replicate()) axes[axis] = call.layout(tensor, axis);
        }
        if (!stacks && axes[axis].is_shard() && axes[axis].placement.dim == dim) return gathered_rule(call);
    }
    c10::List<at::Tensor> locals;
    for (auto tensor : tensors) {
        for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) tensor = call.with_layout(tensor, axis, axes[axis]);
        locals.push_back(local_of(tensor));
    }
    if (stacks) axes = map_dims(axes, [&](std::int64_t d) { return d >= dim ? d + 1 : d; });
    call.arg(0) = locals;
    call.run({call.spec(axes)});
}

const RuleRegistration r_view("views", {"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::_reshape_copy"}, view);
const RuleRegistration r_transpose("views", {"aten::transpose"}, transpose);
const RuleRegistration r_t("views", {"aten::t"}, t);
const RuleRegistration r_permute("views", {"aten::permute"}, permute);
const RuleRegistration r_expand("views", {"aten::expand"}, expand);
const RuleRegistration r_unsqueeze("views", {"aten::unsqueeze"}, unsqueeze);
const RuleRegistration r_squeeze("views", {"aten::squeeze"}, squeeze);
const RuleRegistration r_within("views", {"aten::slice", "aten::split", "aten::split_with_sizes", "aten::unsafe_split", "aten::unsafe_split_with_sizes",
                                          "aten::unsafe_chunk"},
                                within_dim);
const RuleRegistration r_remove("views", {"aten::select", "aten::unbind"}, remove_dim);
const RuleRegistration r_into_zeros("views", {"aten::slice_backward", "aten::select_backward"}, into_zeros);
const RuleRegistration r_join("views", {"aten::cat", "aten::stack"}, join);

}  // namespace
}  // namespace meshard
