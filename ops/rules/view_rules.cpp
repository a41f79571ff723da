// SPDX-License-Identifier: Apache-2.0
// Operators that give the same values another shape.
#include "ops/rules/rank_parts.h"
#include "partition/lists.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <numeric>

namespace meshard {
namespace {

std::int64_t product_of(c10::IntArrayRef sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// Converts extents in rows of `inner` numbers to extents in rows of `behind` numbers; null if a rank's part would not
/// consist of whole rows.
std::shared_ptr<Extents> regrouped(const Extents& extents, std::int64_t inner, std::int64_t behind)
{
    auto others = std::make_shared<Extents>();
    for (const auto extent : extents) {
        if (extent * inner % behind != 0) return nullptr;
        others->push_back(extent * inner / behind);
    }
    return others;
}

/// Layout of a cut tensor after the whole gets another shape; nothing if no layout describes it.
///
/// The cut dimension is (blocks, rows); with the dimensions before it the whole is (outer, rows, inner) where every
/// outer index is cut in the same way. In the new shape some dimension j must begin inside `outer` and hold whole rows:
/// then j is (outer / before_j, rows', ...), and each rank's rows are counted in units of the numbers after j.
std::optional<AxisLayout> layout_in_shape(const AxisLayout& layout, c10::IntArrayRef from, c10::IntArrayRef to)
{
    const auto dim = layout.placement.dim;
    const auto outer = product_of(from.slice(0, dim)) * layout.blocks;
    const auto inner = product_of(from.slice(dim + 1));
    const auto rows = layout.total();
    std::optional<AxisLayout> best;
    bool keeps_rows = false;
    std::int64_t before = 1;
    for (std::size_t j = 0; j < to.size(); before *= to[j], ++j) {
        const auto behind = product_of(to.slice(j + 1));
        if (outer % before != 0 || to[j] * behind * before != outer * rows * inner) continue;
        std::shared_ptr<const Extents> extents = layout.extents;
        std::int64_t sum = rows;
        if (inner != behind) {
            const auto others = regrouped(*extents, inner, behind);
            if (!others) continue;
            sum = std::accumulate(others->begin(), others->end(), std::int64_t{0});
            extents = others;
        }
        if (outer / before * sum != to[j]) continue;
        // Rows that one rank holds alone fit any dimension, of size one, or with that many blocks of one row. The last
        // dimension that keeps the extents is chosen, so that (B, 1, C) stays cut along its rows on the way to (B, C)
        // and back; otherwise the one with the fewest blocks, which operators on grids need, and of those the longest.
        const bool same_rows = extents == layout.extents || *extents == *layout.extents;
        const auto is_worse = [&] {
            return outer / before > best->blocks ||
                   (outer / before == best->blocks && to[j] <= to[best->placement.dim]);
        };
        if (best && !same_rows && (keeps_rows || is_worse())) continue;
        keeps_rows |= same_rows;
        best = layout;
        best->placement.dim = static_cast<std::int64_t>(j);
        best->blocks = outer / before;
        if (!same_rows) best->extents = std::move(extents);
    }
    return best;
}

/// The same rows with every boundary moved to the nearest one at which the new shape can be cut too; nothing if there
/// is none. Groups of `unit` rows that the new shape merges stay together.
std::optional<AxisLayout> aligned_layout(const AxisLayout& layout, c10::IntArrayRef from, c10::IntArrayRef to)
{
    if (layout.blocks != 1) return std::nullopt;
    const auto dim = layout.placement.dim;
    const auto outer = product_of(from.slice(0, dim)), inner = product_of(from.slice(dim + 1)), rows = layout.total();
    std::int64_t unit = 0, before = 1;
    for (std::size_t j = 0; j < to.size() && before <= outer; before *= to[j], ++j) {
        const auto behind = product_of(to.slice(j + 1));
        if (before != outer || to[j] * behind != rows * inner) continue;
        const auto here = behind / std::gcd(behind, inner);
        if (to[j] > 1 && rows % here == 0 && (unit == 0 || here < unit)) unit = here;
    }
    if (unit == 0) return std::nullopt;
    auto extents = std::make_shared<Extents>();
    std::int64_t reached = 0, border = 0;
    for (std::size_t r = 0; r < layout.extents->size(); ++r) {
        reached += (*layout.extents)[r];
        const auto next = r + 1 == layout.extents->size() ? rows : std::min(rows, (reached + unit / 2) / unit * unit);
        extents->push_back(next - border);
        border = next;
    }
    return AxisLayout{layout.placement, std::move(extents), 1};
}

/// The layouts of the whole before and after the reshape; nothing if there are none.
struct Reshaped {
    AxisLayouts before, after;
};

std::optional<Reshaped> reshaped_layouts(const RuleCall& call, const at::Tensor& tensor, c10::IntArrayRef shape)
{
    Reshaped layouts{layouts_of(call, tensor), layouts_of(call, tensor)};
    for (const auto axis : call.axes()) {
        auto& before = layouts.before[axis];
        if (!before.is_shard()) continue;
        std::optional<AxisLayout> after;
        if (tensor.numel() > 0) {
            after = layout_in_shape(before, tensor.sizes(), shape);
            if (!after) {
                if (const auto aligned = aligned_layout(before, tensor.sizes(), shape)) {
                    before = *aligned;
                    after = layout_in_shape(before, tensor.sizes(), shape);
                }
            }
        } else if (std::equal(shape.begin(), shape.end(), tensor.sizes().begin(), tensor.sizes().end())) {
            after = before;
        }
        if (!after) return std::nullopt;
        layouts.after[axis] = *after;
    }
    if (cut_one_dim_twice(layouts.after)) return std::nullopt;
    return layouts;
}

/// Ends the call with a view of its first argument or, with `is_copy`, of a copy of it in another layout.
void finish_view(RuleCall& call, const at::Tensor& view, bool is_copy, const at::Tensor& local, const SpecPtr& spec)
{
    if (is_copy) {
        mark_moved_copy({view}, call.tensor(0), local, spec);
        // Also for `_unsafe_view`, through which some operators write.
        if (!call.is_view()) share_memory(call.tensor(0), {view});
    }
    call.finish({view});
}

/// With `alias` the result is a view: a write to it writes to the tensor.
void reshape_to(RuleCall& call, std::vector<std::int64_t> shape, bool alias)
{
    const auto tensor = call.tensor(0);
    shape = at::infer_size(shape, tensor.numel());
    const auto layouts = reshaped_layouts(call, tensor, shape);
    const auto spec = layouts ? call.spec(layouts->after) : nullptr;
    const auto local_shape = layouts ? spec->local_shape(shape) : std::vector<std::int64_t>{};
    if (!layouts || product_of(local_shape) != product_of(call.spec(layouts->before)->local_shape(tensor.sizes()))) {
        // `_reshape_alias` has strides for the whole's memory, which no rank has.
        return call.name() == "aten::_reshape_alias" ? call.finish({tensor.view(shape)}) : gathered_rule(call);
    }

    const auto moved = with_layouts(call, tensor, layouts->before);
    auto local = local_of(moved);
    bool changed = !moved.is_same(tensor);
    // The strides of the whole allow a view, but those of this rank's part may not.
    if (!at::detail::computeStride(local.sizes(), local.strides(), c10::IntArrayRef(local_shape))) {
        local = local.contiguous();
        changed = true;
    }
    // Strides of the whole's view; contiguous if the whole allows none.
    const auto strides = at::detail::computeStride(tensor.sizes(), tensor.strides(), c10::IntArrayRef(shape));
    finish_view(call, wrap(local.view(local_shape), spec, strides.value_or(std::vector<std::int64_t>{})),
                changed && alias, local, spec_of(moved));
}

/// view(self, dtype): the same bytes as numbers of another type; if its size differs, so does the length of the last
/// dimension.
void view_as_type(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto type = call.arg(1).toScalarType();
    if (c10::elementSize(type) != c10::elementSize(tensor.scalar_type())) return gathered_rule(call);
    call.reduce({tensor});
    call.finish({wrap(local_of(tensor).view(type), spec_of(tensor), tensor.strides())});
}

void view(RuleCall& call)
{
    if (call.schema().overload_name() == "dtype") return view_as_type(call);
    reshape_to(call, call.arg(1).toIntVector(), call.is_view() || call.name() == "aten::_unsafe_view");
}

/// Dimension i of the result is dimension order[i] of the input.
void permute_to(RuleCall& call, const at::DimVector& order)
{
    const auto tensor = call.tensor(0);
    const auto axes = map_dims(layouts_of(call, tensor),
                               [&](std::int64_t dim) { return std::ranges::find(order, dim) - order.begin(); });
    std::vector<std::int64_t> strides;
    for (const auto dim : order) strides.push_back(tensor.stride(dim));
    call.finish({wrap(local_of(tensor).permute(order), call.spec(axes), strides)});
}

at::DimVector swapped(std::int64_t num_dims, std::int64_t a, std::int64_t b)
{
    at::DimVector order(num_dims);
    std::iota(order.begin(), order.end(), 0);
    if (num_dims > 1) std::swap(order[a], order[b]);
    return order;
}

void transpose(RuleCall& call)
{
    const auto num_dims = call.tensor(0).dim();
    permute_to(call,
               swapped(num_dims, from_front(call.arg(1).toInt(), num_dims), from_front(call.arg(2).toInt(), num_dims)));
}

void t(RuleCall& call)
{
    if (call.tensor(0).dim() > 2) return gathered_rule(call);  // which throws the operator's error
    permute_to(call, swapped(call.tensor(0).dim(), 0, 1));
}

void permute(RuleCall& call)
{
    at::DimVector order(call.arg(1).toIntVector());
    for (auto& dim : order) dim = from_front(dim, call.tensor(0).dim());
    permute_to(call, order);
}

/// expand(self, size, implicit). Pending sums are reduced before they are repeated: later, combined with a sharded
/// tensor, the message would contain every repetition.
void expand(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto shape = call.arg(1).toIntVector();
    const auto added = std::ssize(shape) - tensor.dim();
    std::vector<std::int64_t> strides(shape.size(), 0), repeated;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        auto& size = shape[dim + added];
        if (size == -1) size = tensor.size(dim);
        if (size != tensor.size(dim))
            repeated.push_back(dim);
        else
            strides[dim + added] = tensor.stride(dim);
    }
    if (product_of(shape) > tensor.numel() && spec_of(tensor)->has_partial()) call.reduce({tensor});
    const auto whole = with_whole_dims(call, tensor, repeated);  // a single row: one small message
    const auto spec = call.spec(map_dims(layouts_of(call, whole), [&](std::int64_t dim) { return dim + added; }));
    const auto& local = local_of(whole);
    finish_view(call, wrap(local.expand(spec->local_shape(shape)), spec, strides), !whole.is_same(tensor), local,
                spec_of(whole));
}

void unsqueeze(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto at = from_front(call.arg(1).toInt(), tensor.dim() + 1);
    auto strides = tensor.strides().vec();
    strides.insert(strides.begin() + at, at < tensor.dim() ? tensor.size(at) * tensor.stride(at) : 1);
    const auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return dim >= at ? dim + 1 : dim; });
    call.finish({wrap(local_of(tensor).unsqueeze(at), call.spec(axes), strides)});
}

/// squeeze(self), squeeze(self, dim), squeeze(self, dims): decided by the sizes of the whole, not of this rank's part.
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
    std::vector<std::int64_t> removed;
    for (const auto dim : dims) {
        const auto d = c10::maybe_wrap_dim(dim, tensor.dim());
        if (d < tensor.dim() && tensor.size(d) == 1) removed.push_back(d);
    }
    const auto whole = with_whole_dims(call, tensor, removed);
    std::vector<std::int64_t> strides;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        if (!contains(removed, dim)) strides.push_back(tensor.stride(dim));
    }
    const auto axes = map_dims(layouts_of(call, whole), [&](std::int64_t dim) {
        return dim - std::ranges::count_if(removed, [&](std::int64_t d) { return d < dim; });
    });
    const auto& local = local_of(whole);
    finish_view(call, wrap(local.squeeze(removed), call.spec(axes), strides), !whole.is_same(tensor), local,
                spec_of(whole));
}

/// The real and imaginary parts as a last dimension.
void view_as_real(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    std::vector<std::int64_t> strides;
    for (const auto stride : tensor.strides()) strides.push_back(2 * stride);
    strides.push_back(1);
    call.finish({wrap(at::view_as_real(local_of(tensor)), spec_of(tensor), strides)});
}

void view_as_complex(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() == 0 || tensor.size(-1) != 2 || tensor.stride(-1) != 1) return gathered_rule(call);
    const auto whole = with_whole_lines(call, tensor, tensor.dim() - 1);  // so that no pair is cut
    std::vector<std::int64_t> strides;
    for (std::int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) strides.push_back(tensor.stride(dim) / 2);
    auto local = local_of(whole);
    bool pairs = local.storage_offset() % 2 == 0 && local.stride(-1) == 1;
    for (std::int64_t dim = 0; dim + 1 < local.dim(); ++dim) pairs &= local.stride(dim) % 2 == 0;
    // The strides of the whole allow a view, but those of this rank's part may not.
    if (!pairs) local = local.clone(at::MemoryFormat::Contiguous);
    finish_view(call, wrap(at::view_as_complex(local), spec_of(whole), strides), !pairs || !whole.is_same(tensor),
                local, spec_of(whole));
}

/// Computes the conjugate instead of setting a flag on the tensor: messages send numbers without the flag. The result
/// is a copy that is kept up to date as a view would be.
void conjugate(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto& spec = spec_of(tensor);
    const auto local = at::_conj_physical(local_of(tensor));
    const auto view = wrap(local, spec, tensor.strides());
    mark_moved_copy({view}, tensor, local, spec, /*is_conjugate=*/true);
    call.finish({view});
}

/// unsqueeze_ and others: makes the view of that name and replaces the tensor by it.
void reshape_in_place(RuleCall& call)
{
    const auto self = call.tensor(0);
    if (!is_sharded(self)) return gathered_rule(call);
    const auto view = [&]() -> at::Tensor {
        const auto& name = call.name();
        if (name == "aten::unsqueeze_") return at::unsqueeze(self, call.arg(1).toInt());
        if (name == "aten::transpose_") return at::transpose(self, call.arg(1).toInt(), call.arg(2).toInt());
        if (name == "aten::t_") return at::t(self);
        if (call.num_args() == 1) return at::squeeze(self);
        return call.arg(1).isInt() ? at::squeeze(self, call.arg(1).toInt())
                                   : at::squeeze(self, call.arg(1).toIntVector());
    };
    become(self, view());
    call.finish({self});
}

void refuse_in_place(RuleCall& call)
{
    call.refuse("it gives a tensor another shape or memory in place",
                "Use the form that returns a new tensor, or redistribute(x, Replicate())");
}

/// Aten sets the strides of a pooling's result for channels-last tensors: with the present shape and strides nothing
/// has to be done.
void as_strided_in_place(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto size = call.arg(1).toIntVector(), stride = call.arg(2).toIntVector();
    bool stays = tensor.sizes() == c10::IntArrayRef(size) && (call.arg(3).isNone() || call.arg(3).toInt() == 0);
    for (std::size_t dim = 0; stays && dim < size.size(); ++dim)
        stays = size[dim] == 1 || stride[dim] == tensor.stride(static_cast<std::int64_t>(dim));
    if (!stays) refuse_in_place(call);
    call.finish({tensor});
}

// --- direct kernels for views that keep the cut rows together --------------------------------------------------------

/// `layout_in_shape`, with a fast path if a dimension of the new shape has the same rows.
std::optional<AxisLayout> layout_in_shape_soon(AxisLayout layout, c10::IntArrayRef from, c10::IntArrayRef to)
{
    const auto rows = layout.total();
    if (rows < 2) return layout_in_shape(layout, from, to);  // a single row may fit several dimensions
    const auto outer = product_of(from.slice(0, layout.placement.dim)) * layout.blocks;
    std::int64_t before = 1;
    for (std::size_t j = 0; j < to.size() && before <= outer; before *= to[j], ++j) {
        if (outer % before != 0 || to[j] != outer / before * rows) continue;
        layout.placement.dim = static_cast<std::int64_t>(j);
        layout.blocks = outer / before;
        return layout;
    }
    return layout_in_shape(layout, from, to);
}

template <bool kAlias>
std::optional<at::Tensor> direct_view(const at::Tensor& tensor, c10::SymIntArrayRef size)
{
    const auto given = c10::asIntArrayRefSlowOpt(size);
    if (!given || !is_ready(tensor) || tensor.numel() == 0) return std::nullopt;
    const auto shape = at::infer_size_dv(*given, tensor.numel());
    const auto& local = local_of(tensor);
    const auto& before = spec_of(tensor);
    auto axes = before->axes;
    auto own = shape;
    for (std::size_t a = 0; a < axes.size(); ++a) {
        if (!axes[a].is_shard()) continue;
        auto after = layout_in_shape_soon(axes[a], tensor.sizes(), shape);
        if (!after) return std::nullopt;
        own[after->placement.dim] =
            after->blocks * (*after->extents)[before->device_mesh->coordinate(static_cast<std::int64_t>(a))];
        axes[a] = *std::move(after);
    }
    if (cut_one_dim_twice(axes) || product_of(own) != local.numel()) return std::nullopt;
    at::DimVector strides;
    if (!tensor.is_contiguous() || !local.is_contiguous()) {
        auto whole = at::detail::computeStride(tensor.sizes(), tensor.strides(), shape);
        if (!whole || !at::detail::computeStride(local.sizes(), local.strides(), own)) return std::nullopt;
        strides = *std::move(whole);
    }
    const auto spec = with_axes(before, axes);
    return kAlias ? view_of(tensor, local.view(own), spec, strides) : wrap(local.view(own), spec, strides);
}

std::optional<at::Tensor> direct_reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size,
                                               c10::SymIntArrayRef /* those of the view */)
{
    return direct_view<true>(tensor, size);
}

/// LibTorch's `permute` and `expand` call this operator, after one more.
at::Tensor with_strides(const at::Tensor& local, const at::DimVector& sizes, const at::DimVector& strides)
{
    return local.as_strided(sizes, strides, local.storage_offset());
}

/// @param order   counted from the front
std::optional<at::Tensor> permuted_directly(const at::Tensor& tensor, const at::DimVector& order)
{
    if (!is_ready(tensor)) return std::nullopt;
    const auto& local = local_of(tensor);
    at::DimVector strides, own_sizes, own_strides;
    for (const auto dim : order) {
        strides.push_back(tensor.stride(dim));
        own_sizes.push_back(local.size(dim));
        own_strides.push_back(local.stride(dim));
    }
    const auto place = [&](std::int64_t cut) { return std::ranges::find(order, cut) - order.begin(); };
    return view_of(tensor, with_strides(local, own_sizes, own_strides), with_dims(spec_of(tensor), place), strides);
}

std::optional<at::Tensor> direct_permute(const at::Tensor& tensor, c10::IntArrayRef dims)
{
    at::DimVector order;
    for (const auto dim : dims) {
        const auto d = existing_dim(dim, tensor.dim());
        // The operator itself throws.
        if (!d || contains(order, *d)) return std::nullopt;
        order.push_back(*d);
    }
    return std::ssize(order) == tensor.dim() ? permuted_directly(tensor, order) : std::nullopt;
}

std::optional<at::Tensor> direct_transpose(const at::Tensor& tensor, std::int64_t a, std::int64_t b)
{
    const auto first = existing_dim(a, tensor.dim()), second = existing_dim(b, tensor.dim());
    return first && second ? permuted_directly(tensor, swapped(tensor.dim(), *first, *second)) : std::nullopt;
}

std::optional<at::Tensor> direct_t(const at::Tensor& tensor)
{
    return tensor.dim() == 2 ? permuted_directly(tensor, {1, 0}) : std::nullopt;
}

/// Expands dimensions that are whole on every rank; not for pending sums.
std::optional<at::Tensor> direct_expand(const at::Tensor& tensor, c10::SymIntArrayRef size,
                                        bool /* implicit: says who called */)
{
    const auto given = c10::asIntArrayRefSlowOpt(size);
    if (!given || !is_ready(tensor)) return std::nullopt;
    const auto added = std::ssize(*given) - tensor.dim();
    if (added < 0) return std::nullopt;
    const auto& local = local_of(tensor);
    const auto& spec = spec_of(tensor);
    at::DimVector own(*given), strides(given->size(), 0), own_strides(given->size(), 0);
    // The operator itself throws.
    if (std::any_of(own.begin(), own.begin() + added, [](std::int64_t n) { return n < 0; })) return std::nullopt;
    bool repeats = std::any_of(own.begin(), own.begin() + added, [](std::int64_t n) { return n != 1; });
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        auto& length = own[dim + added];
        if (length == -1 || length == tensor.size(dim)) {
            length = local.size(dim);
            strides[dim + added] = tensor.stride(dim);
            own_strides[dim + added] = local.stride(dim);
        } else if (tensor.size(dim) == 1 && length >= 0 && is_whole(tensor, dim)) {
            repeats = true;
        } else {
            return std::nullopt;
        }
    }
    if (repeats && spec->has_partial()) return std::nullopt;
    return view_of(tensor, with_strides(local, own, own_strides),
                   with_dims(spec, [&](std::int64_t cut) { return cut + added; }), strides);
}

std::optional<at::Tensor> direct_unsqueeze(const at::Tensor& tensor, std::int64_t dim)
{
    const auto at = existing_dim(dim, tensor.dim() + 1);
    if (!at || !is_ready(tensor)) return std::nullopt;
    at::DimVector strides(tensor.strides());
    strides.insert(strides.begin() + *at, *at < tensor.dim() ? tensor.size(*at) * tensor.stride(*at) : 1);
    return view_of(tensor, local_of(tensor).unsqueeze(*at),
                   with_dims(spec_of(tensor), [&](std::int64_t cut) { return cut + (cut >= *at); }), strides);
}

std::optional<at::Tensor> direct_squeeze(const at::Tensor& tensor, std::int64_t dim)
{
    const auto at = existing_dim(dim, tensor.dim());
    if (!at || !is_ready(tensor) || tensor.size(*at) != 1 || !is_whole(tensor, *at)) return std::nullopt;
    at::DimVector strides(tensor.strides());
    strides.erase(strides.begin() + *at);
    return view_of(tensor, local_of(tensor).squeeze(*at),
                   with_dims(spec_of(tensor), [&](std::int64_t cut) { return cut - (cut > *at); }), strides);
}

namespace op = at::_ops;
const DirectRegistration view_kernels[] = {
    direct_kernel<op::view, &direct_view<true>>(view),
    direct_kernel<op::_unsafe_view, &direct_view<false>>(view),
    direct_kernel<op::_reshape_alias, &direct_reshape_alias>(view),
    direct_kernel<op::permute, &direct_permute>(permute),
    direct_kernel<op::transpose_int, &direct_transpose>(transpose),
    direct_kernel<op::t, &direct_t>(t),
    direct_kernel<op::expand, &direct_expand>(expand),
    direct_kernel<op::unsqueeze, &direct_unsqueeze>(unsqueeze),
    direct_kernel<op::squeeze_dim, &direct_squeeze>(squeeze),
};

const RuleRegistration view_rules[] = {
    {"refused", {"aten::resize_", "aten::resize_as_", "aten::set_"}, refuse_in_place},
    {"refused", {"aten::as_strided_"}, as_strided_in_place},  // except for calls that change nothing
    {"views", {"aten::unsqueeze_", "aten::squeeze_", "aten::transpose_", "aten::t_"}, reshape_in_place},
    {"views", {"aten::view_as_real"}, view_as_real},
    {"views", {"aten::view_as_complex"}, view_as_complex},
    {"views", {"aten::_conj"}, conjugate},
    {"views", {"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::_reshape_copy"}, view},
    {"views", {"aten::transpose"}, transpose},
    {"views", {"aten::t"}, t},
    {"views", {"aten::permute"}, permute},
    {"views", {"aten::expand"}, expand},
    {"views", {"aten::unsqueeze"}, unsqueeze},
    {"views", {"aten::squeeze"}, squeeze},
};

}  // namespace
}  // namespace meshard
