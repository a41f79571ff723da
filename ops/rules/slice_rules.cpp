// SPDX-License-Identifier: Apache-2.0
// Parts of a dimension: slices, chunks, single entries, and their gradients. A slice of a cut dimension consists of
// each rank's slice of its own rows; a single entry is sent by its owner.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace meshard {
namespace {

// For each device mesh; beyond it all entries are dropped, on every rank in the same call.
constexpr std::size_t kMaxNotes = 4096;

struct Notes {
    std::weak_ptr<const DeviceMesh> mesh;
    std::map<std::vector<std::int64_t>, AxisLayouts> layouts;
};

std::mutex mutex;

std::map<const DeviceMesh*, Notes>& all_notes()
{
    static std::map<const DeviceMesh*, Notes> notes;
    return notes;
}

/// Stores the layout of the input of a selection (slice, select, max along a dimension), whose backward operator gets
/// the sizes of that input but not its layout. Backward rules give their result the stored layout, so that no
/// redistribution is needed where gradients are added. Any layout would be correct; this one is the cheapest. Keeps the
/// latest entry for each device mesh and sizes; equal on every rank.
void store_layout(const at::Tensor& tensor)
{
    if (!is_sharded(tensor) || !tensor.requires_grad()) return;
    const auto& spec = *spec_of(tensor);
    if (!spec.has_shard() || spec.has_partial()) return;
    const std::lock_guard lock(mutex);
    std::erase_if(all_notes(), [](const auto& entry) { return entry.second.mesh.expired(); });
    auto& notes = all_notes()[spec.device_mesh.get()];
    notes.mesh = spec.device_mesh;
    if (notes.layouts.size() >= kMaxNotes) notes.layouts.clear();
    notes.layouts[tensor.sizes().vec()] = spec.axes;
}

/// The layouts stored last for these sizes, if any.
std::optional<AxisLayouts> find_layout(const RuleCall& call, c10::IntArrayRef sizes)
{
    const std::lock_guard lock(mutex);
    const auto notes = all_notes().find(call.device_mesh().get());
    if (notes == all_notes().end() || notes->second.mesh.expired()) return std::nullopt;
    const auto found = notes->second.layouts.find(sizes.vec());
    if (found == notes->second.layouts.end()) return std::nullopt;
    return found->second;
}

/// Entries start, start + step, ... below end of a dimension.
struct Range {
    std::int64_t dim = 0, start = 0, end = 0, step = 1;
};

Range clamped(std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end, std::int64_t step,
              std::int64_t size)
{
    Range range{dim, start.value_or(0), end.value_or(size), step};
    if (range.start < 0) range.start += size;
    if (range.end < 0) range.end += size;
    range.start = std::clamp<std::int64_t>(range.start, 0, size);
    range.end = std::clamp<std::int64_t>(range.end, range.start, size);
    return range;
}

/// The part of a range that a rank holds, relative to its first row.
Range own_range(const Range& range, const Extents& extents, std::int64_t rank)
{
    std::int64_t offset = 0;
    for (std::int64_t r = 0; r < rank; ++r) offset += extents[r];
    const auto skipped = std::max<std::int64_t>(0, (offset - range.start + range.step - 1) / range.step);
    const auto first = range.start + skipped * range.step;
    const auto last = std::min(range.end, offset + extents[rank]);
    if (offset <= range.start && last <= range.start) return {range.dim, 0, 0, range.step};
    if (first >= last) return {range.dim, 0, 0, range.step};
    return {range.dim, first - offset, last - offset, range.step};
}

std::int64_t count(const Range& range)
{
    return (range.end - range.start + range.step - 1) / range.step;
}

/// Layout of the slice of a tensor with layout `layout`.
AxisLayout sliced_layout(const AxisLayout& layout, const Range& range)
{
    auto extents = std::make_shared<Extents>();
    for (std::size_t r = 0; r < layout.extents->size(); ++r)
        extents->push_back(count(own_range(range, *layout.extents, static_cast<std::int64_t>(r))));
    return {layout.placement, std::move(extents), 1};
}

AxisLayouts sliced_layouts(AxisLayouts axes, const Range& range)
{
    for (auto& axis : axes) {
        if (axis.is_shard() && axis.placement.dim == range.dim) axis = sliced_layout(axis, range);
    }
    return axes;
}

Range local_range(const RuleCall& call, const AxisLayouts& axes, const Range& range)
{
    for (const auto axis : call.axes()) {
        if (axes[axis].is_shard() && axes[axis].placement.dim == range.dim)
            return own_range(range, *axes[axis].extents, call.coordinate(axis));
    }
    return range;
}

bool has_blocks(const AxisLayouts& axes, std::int64_t dim)
{
    return std::ranges::any_of(
        axes, [&](const auto& axis) { return axis.is_shard() && axis.placement.dim == dim && axis.blocks > 1; });
}

at::Tensor slice_of(const at::Tensor& local, const Range& range)
{
    return local.slice(range.dim, range.start, range.end, range.step);
}

at::Tensor sliced(const RuleCall& call, const at::Tensor& tensor, const Range& range)
{
    const auto axes = layouts_of(call, tensor);
    auto strides = tensor.strides().vec();
    strides[range.dim] *= range.step;
    return wrap(slice_of(local_of(tensor), local_range(call, axes, range)), call.spec(sliced_layouts(axes, range)),
                strides);
}

std::optional<std::int64_t> optional_int(const c10::IValue& value)
{
    return value.isNone() ? std::nullopt : std::make_optional(value.toInt());
}

/// slice(self, dim, start?, end?, step)
void slice(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    if (has_blocks(layouts_of(call, tensor), dim) || call.arg(4).toInt() < 1) return gathered_rule(call);
    store_layout(tensor);
    call.finish({sliced(
        call, tensor,
        clamped(dim, optional_int(call.arg(2)), optional_int(call.arg(3)), call.arg(4).toInt(), tensor.size(dim)))});
}

/// split(self, size, dim), split_with_sizes(self, sizes, dim)
void split(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim = from_front(call.arg(2).toInt(), tensor.dim());
    if (has_blocks(layouts_of(call, tensor), dim)) return gathered_rule(call);
    const auto length = tensor.size(dim);
    std::vector<std::int64_t> sizes;
    if (call.arg(1).isInt()) {
        const auto size = call.arg(1).toInt();
        if (size <= 0 || length == 0) return gathered_rule(call);
        for (std::int64_t start = 0; start < length; start += size) sizes.push_back(std::min(size, length - start));
    } else {
        sizes = call.arg(1).toIntVector();
        std::int64_t sum = 0;
        for (const auto size : sizes) sum += size;
        if (sum != length) return gathered_rule(call);  // the operator itself throws
    }
    store_layout(tensor);
    c10::List<at::Tensor> parts;
    std::int64_t start = 0;
    for (const auto size : sizes) {
        parts.push_back(sliced(call, tensor, {dim, start, start + size, 1}));
        start += size;
    }
    call.finish({parts});
}

AxisLayouts without_dim(AxisLayouts axes, std::int64_t removed)
{
    return map_dims(std::move(axes), [&](std::int64_t dim) { return dim > removed ? dim - 1 : dim; });
}

int owner_of(const AxisLayout& layout, std::int64_t index)
{
    int rank = 0;
    while (layout.offset(rank + 1) <= index) ++rank;
    return rank;
}

std::int64_t row_from_front(std::int64_t index, std::int64_t size)
{
    return index < 0 ? index + size : index;
}

/// select(self, dim, index)
void select(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    const auto index = row_from_front(call.arg(2).toInt(), tensor.size(dim));
    auto axes = layouts_of(call, tensor);
    if (has_blocks(axes, dim) || index < 0 || index >= tensor.size(dim)) return gathered_rule(call);
    store_layout(tensor);
    auto strides = tensor.strides().vec();
    strides.erase(strides.begin() + dim);
    const auto cutting = axes_cutting(call, tensor, {dim});
    if (cutting.empty()) {
        return call.finish({wrap(local_of(tensor).select(dim, index), call.spec(without_dim(axes, dim)), strides)});
    }
    const auto axis = cutting[0];
    const auto layout = axes[axis];
    const auto owner = owner_of(layout, index);
    const auto& local = local_of(tensor);
    auto shape = local.sizes().vec();
    shape.erase(shape.begin() + dim);
    at::Tensor row, sent;
    if (call.coordinate(axis) == owner) {
        row = local.select(dim, index - layout.offset(owner));
        sent = row.contiguous();
    } else {
        row = sent = at::empty(shape, local.options());
    }
    call.device_mesh()->group(axis).broadcast(sent, owner);
    axes[axis] = {};
    const auto result = wrap(row, call.spec(without_dim(axes, dim)), strides);
    if (call.device_mesh()->size(axis) > 1) mark_row_copy(result, tensor, axis, owner);
    call.finish({result});
}

/// unbind(self, dim)
void unbind(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    if (tensor.dim() == 0 || cuts_any(call, tensor, {dim})) return gathered_rule(call);
    store_layout(tensor);
    auto strides = tensor.strides().vec();
    strides.erase(strides.begin() + dim);
    const auto spec = call.spec(without_dim(layouts_of(call, tensor), dim));
    c10::List<at::Tensor> parts;
    for (const auto& part : local_of(tensor).unbind(dim)) parts.push_back(wrap(part, spec, strides));
    call.finish({parts});
}

/// Extents of the whole from those of its slice.
AxisLayout unsliced_layout(const AxisLayout& layout, const Range& range, std::int64_t size)
{
    auto extents = std::make_shared<Extents>();
    std::int64_t rows = 0, begin = 0;
    for (std::size_t r = 0; r < layout.extents->size(); ++r) {
        rows += (*layout.extents)[r];
        const auto end = r + 1 == layout.extents->size() ? size : std::min(size, range.start + rows * range.step);
        extents->push_back(rows == 0 && r + 1 < layout.extents->size() ? 0 : end - begin);
        if (extents->back() > 0) begin = end;
    }
    return {layout.placement, std::move(extents), 1};
}

/// Layouts for a gradient of these sizes whose Shards along other dimensions than `dim` are `axes`: those remembered
/// for the tensor that was selected from, unless the gradient is sharded differently.
AxisLayouts completed_by_memory(const RuleCall& call, AxisLayouts axes, c10::IntArrayRef sizes)
{
    const auto known = find_layout(call, sizes);
    if (!known) return axes;
    for (const auto a : call.axes()) {
        if (!axes[a].is_replicate() || !(*known)[a].is_shard()) continue;
        const auto before = axes[a];
        axes[a] = (*known)[a];
        if (cut_one_dim_twice(axes)) axes[a] = before;
    }
    return axes;
}

/// slice_backward(grad, input_sizes, dim, start, end, step): zeros, with the gradient written to the slice.
void slice_backward(RuleCall& call)
{
    const auto sizes = call.arg(1).toIntVector();
    const auto dim = from_front(call.arg(2).toInt(), std::ssize(sizes));
    const auto range = clamped(dim, call.arg(3).toInt(), call.arg(4).toInt(), call.arg(5).toInt(), sizes[dim]);
    keep_sums_only(call, call.tensor(0));  // zeros around a part are correct in sums alone
    auto axes = layouts_of(call, call.tensor(0));
    if (has_blocks(axes, dim)) return gathered_rule(call);
    const auto known = find_layout(call, sizes);
    for (const auto a : call.axes()) {
        if (!axes[a].is_shard() || axes[a].placement.dim != dim) continue;
        const bool as_known = known && (*known)[a].is_shard() && (*known)[a].placement.dim == dim &&
                              (*known)[a].blocks == 1 && sliced_layout((*known)[a], range) == axes[a];
        axes[a] = as_known ? (*known)[a] : unsliced_layout(axes[a], range, sizes[dim]);
    }
    const auto completed = completed_by_memory(call, axes, sizes);
    if (!has_blocks(completed, dim)) axes = completed;
    const auto gradient = local_of(with_layouts(call, call.tensor(0), sliced_layouts(axes, range)));
    const auto spec = call.spec(axes);
    const auto result = at::zeros(spec->local_shape(sizes), gradient.options());
    slice_of(result, local_range(call, axes, range)).copy_(gradient);
    call.finish({wrap(result, spec)});
}

/// select_backward(grad, input_sizes, dim, index)
void select_backward(RuleCall& call)
{
    const auto sizes = call.arg(1).toIntVector();
    const auto dim = from_front(call.arg(2).toInt(), std::ssize(sizes));
    const auto index = row_from_front(call.arg(3).toInt(), sizes[dim]);
    keep_sums_only(call, call.tensor(0));
    auto axes = map_dims(layouts_of(call, call.tensor(0)), [&](std::int64_t d) { return d >= dim ? d + 1 : d; });
    const auto completed = completed_by_memory(call, axes, sizes);
    if (!has_blocks(completed, dim)) axes = completed;
    auto gradient_axes = axes;  // a pending sum stays one
    for (auto& axis : gradient_axes) {
        if (axis.is_shard() && axis.placement.dim == dim) axis = {};
    }
    const auto gradient = local_of(with_layouts(call, call.tensor(0), without_dim(gradient_axes, dim)));
    const auto spec = call.spec(axes);
    const auto result = at::zeros(spec->local_shape(sizes), gradient.options());
    const auto own = local_range(call, axes, {dim, index, index + 1, 1});
    if (count(own) > 0) result.select(dim, own.start).copy_(gradient);
    call.finish({wrap(result, spec)});
}

/// slice_scatter(self, src, dim, start?, end?, step), select_scatter(self, src, dim, index): a copy of self with one
/// part replaced.
template <bool kSelect>
void scatter_part(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim = from_front(call.arg(2).toInt(), tensor.dim());
    const auto size = tensor.size(dim);
    const auto axes = layouts_of(call, tensor);
    const auto index = kSelect ? row_from_front(call.arg(3).toInt(), size) : 0;
    if (has_blocks(axes, dim) || (kSelect && (index < 0 || index >= size))) return gathered_rule(call);
    call.reduce({tensor, call.tensor(1)});
    const auto complete = layouts_of(call, tensor);
    const auto range =
        kSelect ? Range{dim, index, index + 1, 1}
                : clamped(dim, optional_int(call.arg(3)), optional_int(call.arg(4)), call.arg(5).toInt(), size);
    auto part = tensor.sizes().vec();
    part[dim] = count(range);
    if (kSelect) part.erase(part.begin() + dim);
    TORCH_CHECK(call.tensor(1).sizes() == part, call.name(), ": expected a source of shape ", c10::IntArrayRef(part),
                ", the part of self that it replaces, found ", call.tensor(1).sizes(), ".");
    const auto source_axes =
        kSelect ? without_dim(replaced(complete, {dim}, {}), dim) : sliced_layouts(complete, range);
    const auto source = local_of(with_layouts(call, call.tensor(1), source_axes));
    const auto result = local_of(tensor).clone(at::MemoryFormat::Contiguous);
    const auto own = local_range(call, complete, range);
    if (!kSelect)
        slice_of(result, own).copy_(source);
    else if (count(own) > 0)
        result.select(dim, own.start).copy_(source);
    call.finish({wrap(result, call.spec(complete))});
}

/// diagonal(self, offset, dim1, dim2): the two dimensions are removed, the diagonal is appended. If one of the two is
/// cut, so is the diagonal: its row r is in row r of the cut dimension, shifted by the rows that `offset` skips.
void diagonal(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto a = from_front(call.arg(2).toInt(), tensor.dim()), b = from_front(call.arg(3).toInt(), tensor.dim());
    const auto cutting = axes_cutting(call, tensor, {a, b});
    auto axes = layouts_of(call, tensor);
    if (a == b || cutting.size() > 1 || (!cutting.empty() && axes[cutting[0]].blocks > 1)) return gathered_rule(call);
    auto offset = call.arg(1).toInt();
    auto strides = tensor.strides().vec();
    strides.push_back(strides[a] + strides[b]);
    strides.erase(strides.begin() + std::max(a, b));
    strides.erase(strides.begin() + std::min(a, b));
    for (auto& axis : axes) {
        if (axis.is_shard() && axis.placement.dim != a && axis.placement.dim != b)
            axis.placement.dim -= (axis.placement.dim > a) + (axis.placement.dim > b);
    }
    if (!cutting.empty()) {
        auto& layout = axes[cutting[0]];
        const bool cuts_rows = call.layout(tensor, cutting[0]).placement.dim == a;
        const auto first = std::max<std::int64_t>(0, cuts_rows ? -offset : offset);
        const auto end =
            first + std::max<std::int64_t>(0, std::min(tensor.size(a) - std::max<std::int64_t>(0, -offset),
                                                       tensor.size(b) - std::max<std::int64_t>(0, offset)));
        auto extents = std::make_shared<Extents>();
        for (std::size_t r = 0; r < layout.extents->size(); ++r) {
            const auto begin = layout.offset(static_cast<std::int64_t>(r));
            extents->push_back(
                std::max<std::int64_t>(0, std::min(begin + (*layout.extents)[r], end) - std::max(begin, first)));
        }
        const auto before = layout.offset(call.coordinate(cutting[0]));
        offset += cuts_rows ? before : -before;
        layout = {Shard(tensor.dim() - 2), std::move(extents), 1};
    }
    call.finish({wrap(local_of(tensor).diagonal(offset, a, b), call.spec(axes), strides)});
}

/// diagonal_backward(grad, input_sizes, offset, dim1, dim2)
void diagonal_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0);
    const auto sizes = call.arg(1).toIntVector();
    const auto num_dims = std::ssize(sizes);
    const auto a = from_front(call.arg(3).toInt(), num_dims), b = from_front(call.arg(4).toInt(), num_dims);
    if (cuts_any(call, gradient, {gradient.dim() - 1})) return gathered_rule(call);
    const auto spec = call.spec(map_dims(layouts_of(call, gradient), [&](std::int64_t dim) {
        if (dim >= std::min(a, b)) ++dim;
        return dim >= std::max(a, b) ? dim + 1 : dim;
    }));
    call.make_local();
    call.arg(1) = spec->local_shape(sizes);
    call.run({spec});
}

/// unfold(self, dimension, size, step)
void unfold(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() == 0) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    if (tensor.dim() == 0 || cuts_any(call, tensor, {dim})) return gathered_rule(call);
    auto strides = tensor.strides().vec();
    strides.push_back(strides[dim]);
    strides[dim] *= call.arg(3).toInt();
    call.finish(
        {wrap(local_of(tensor).unfold(dim, call.arg(2).toInt(), call.arg(3).toInt()), spec_of(tensor), strides)});
}

/// unfold_backward(grad, input_sizes, dim, size, step)
void unfold_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0);
    const auto sizes = call.arg(1).toIntVector();
    const auto dim = from_front(call.arg(2).toInt(), std::ssize(sizes));
    if (cuts_any(call, gradient, {dim, gradient.dim() - 1})) return gathered_rule(call);
    const auto spec = spec_of(gradient);
    call.make_local();
    call.arg(1) = spec->local_shape(sizes);
    call.run({spec});
}

/// as_strided(self, size, stride, storage_offset?) refers to memory that only a whole tensor has. Views inside a
/// contiguous tensor are supported: windows along the last dimension as an unfold, anything else by gathering the
/// whole.
void as_strided(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto size = call.arg(1).toIntVector(), stride = call.arg(2).toIntVector();
    std::int64_t reach = 0;
    for (std::size_t dim = 0; dim < size.size(); ++dim) reach += (size[dim] - 1) * stride[dim];
    const bool own_memory = tensor.is_contiguous() && call.arg(3).isNone() && reach < tensor.numel();
    if (!own_memory && (tensor.is_view() || !tensor.is_contiguous())) {
        call.refuse("strides of a view refer to memory of the whole, which no rank has",
                    "Use narrow, select or permute, or clone the tensor before");
    }
    const auto last = tensor.dim() - 1;
    const bool one_more =
        own_memory && last >= 0 && std::ssize(size) == tensor.dim() + 1 && stride.back() == 1 && stride[last] > 0;
    if (!one_more || !std::equal(size.begin(), size.begin() + last, tensor.sizes().begin()) ||
        !std::equal(stride.begin(), stride.begin() + last, tensor.strides().begin()) || size[last] == 0 ||
        (size[last] - 1) * stride[last] + size.back() > tensor.size(last)) {
        return gathered_rule(call);
    }
    call.finish({tensor.unfold(last, size.back(), stride[last]).narrow(last, 0, size[last])});
}

// --- direct kernels for parts of a dimension that every rank holds whole ---------------------------------------------

std::optional<at::Tensor> direct_slice(const at::Tensor& x, std::int64_t dim, std::optional<c10::SymInt> start,
                                       std::optional<c10::SymInt> end, c10::SymInt step)
{
    const auto d = existing_dim(dim, x.dim());
    const auto every = step.maybe_as_int();
    if (!d || !every || *every < 1 || !is_ready(x) || !is_whole(x, *d)) return std::nullopt;
    store_layout(x);
    at::DimVector strides(x.strides());
    strides[*d] *= *every;
    return view_of(x, local_of(x).slice_symint(*d, std::move(start), std::move(end), *every), spec_of(x), strides);
}

std::optional<at::Tensor> direct_select(const at::Tensor& x, std::int64_t dim, c10::SymInt index)
{
    const auto d = existing_dim(dim, x.dim());
    const auto at = index.maybe_as_int();
    if (!d || !at || *at < -x.size(*d) || *at >= x.size(*d) || !is_ready(x) || !is_whole(x, *d)) return std::nullopt;
    store_layout(x);
    at::DimVector strides(x.strides());
    strides.erase(strides.begin() + *d);
    return view_of(x, local_of(x).select(*d, *at),
                   with_dims(spec_of(x), [&](std::int64_t cut) { return cut - (cut > *d); }), strides);
}

/// For a gradient that is cut on every axis, whose cuts are then those of the whole.
std::optional<at::Tensor> direct_slice_backward(const at::Tensor& gradient, c10::SymIntArrayRef input_sizes,
                                                std::int64_t dim, c10::SymInt start, c10::SymInt end, c10::SymInt step)
{
    const auto sizes = c10::asIntArrayRefSlowOpt(input_sizes);
    const auto d = existing_dim(dim, gradient.dim());
    if (!sizes || !d || !is_ready(gradient) || !is_whole(gradient, *d)) return std::nullopt;
    const auto& spec = spec_of(gradient);
    auto own = at::DimVector(*sizes);
    for (const auto& axis : spec->axes) {
        if (!axis.is_shard()) return std::nullopt;
        own[axis.placement.dim] = local_of(gradient).size(axis.placement.dim);
    }
    return fresh(at::slice_backward_symint(local_of(gradient), c10::fromIntArrayRefSlow(own), *d, std::move(start),
                                           std::move(end), std::move(step)),
                 spec);
}

const DirectRegistration slice_kernels[] = {
    direct_kernel<at::_ops::slice_Tensor, &direct_slice>(slice),
    direct_kernel<at::_ops::select_int, &direct_select>(select),
    direct_kernel<at::_ops::slice_backward, &direct_slice_backward>(slice_backward),
};

const RuleRegistration slice_rules[] = {
    {"views", {"aten::slice"}, slice},
    {"views", {"aten::split", "aten::split_with_sizes", "aten::unsafe_split", "aten::unsafe_split_with_sizes"}, split},
    {"views", {"aten::select"}, select},
    {"views", {"aten::unbind"}, unbind},
    {"views", {"aten::slice_backward"}, slice_backward},
    {"views", {"aten::select_backward"}, select_backward},
    {"views", {"aten::slice_scatter"}, scatter_part<false>},
    {"views", {"aten::select_scatter"}, scatter_part<true>},
    {"views", {"aten::diagonal"}, diagonal},
    {"views", {"aten::diagonal_backward"}, diagonal_backward},
    {"views", {"aten::unfold"}, unfold},
    {"views", {"aten::unfold_backward"}, unfold_backward},
    {"views", {"aten::as_strided"}, as_strided},
};

}  // namespace
}  // namespace meshard
