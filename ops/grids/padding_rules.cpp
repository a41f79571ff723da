// SPDX-License-Identifier: Apache-2.0
// Padding with a constant, by reflection, by repeating the edge, and circular. Boundaries between ranks move by the
// amount added in front: only the first and last ranks' parts grow, and interior ranks send nothing.
#include "ops/grids/grid_cuts.h"
#include "ops/grids/tap_map.h"
#include "ops/rules/placement_algebra.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

namespace meshard {
namespace {

/// Index of dimension `dim` in a list of (front, back) amounts that starts with the last dimension.
std::size_t position_of(std::int64_t dim, std::int64_t num_dims)
{
    return static_cast<std::size_t>(2 * (num_dims - 1 - dim));
}

/// constant_pad_nd(self, pad, value): every rank pads or cuts its own entries, without a message.
void constant_pad(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    auto pad = call.arg(1).toIntVector();
    const auto num_dims = tensor.dim();
    auto layouts = without_pending(layouts_of(call, tensor));
    if (pad.size() % 2 != 0 || pad.size() > 2 * static_cast<std::size_t>(num_dims)) return gathered_rule(call);
    for (std::size_t i = 0; i < pad.size(); i += 2) {
        const auto dim = num_dims - 1 - static_cast<std::int64_t>(i) / 2;
        // If more is cut off than exists, the operator throws its own error on every rank.
        if (tensor.size(dim) + pad[i] + pad[i + 1] < 0 || -pad[i] > tensor.size(dim) || -pad[i + 1] > tensor.size(dim))
            return gathered_rule(call);
    }
    const auto axes = cut_axes(layouts, num_dims, 0);
    auto shape = local_of(tensor).sizes().vec();
    if (!axes) {
        // A dimension in blocks is supported if it gets no padding.
        for (const auto& layout : layouts) {
            const auto position = layout.is_shard() ? position_of(layout.placement.dim, num_dims) : pad.size();
            if (position < pad.size() && (pad[position] != 0 || pad[position + 1] != 0)) return gathered_rule(call);
        }
    }
    for (std::int64_t dim = 0; dim < num_dims; ++dim) {
        const auto position = position_of(dim, num_dims);
        if (position >= pad.size()) continue;
        const auto front = pad[position], back = pad[position + 1];
        const auto axis = axes ? (*axes)[dim] : -1;
        if (axis < 0) {
            shape[dim] += front + back;
            continue;
        }
        const auto in = layouts[axis];
        const auto extents = extents_by_boundary(*in.extents, tensor.size(dim) + front + back,
                                                 [&](std::int64_t a) { return a + front; });
        const auto me = call.coordinate(axis);
        const auto owned = ranges_of(*in.extents)[me], outputs = ranges_of(extents)[me];
        layouts[axis] = cut_layout(in, dim, extents);
        pad[position] = owned.begin + front - outputs.begin;
        pad[position + 1] = outputs.end - (owned.end + front);
        shape[dim] = outputs.size();
    }
    call.reduce({tensor});
    const auto& local = local_of(tensor);
    const auto result = c10::multiply_integers(shape) == 0 ? at::empty(shape, local.options())
                                                           : at::constant_pad_nd(local, pad, call.arg(2).toScalar());
    call.finish({wrap(result, call.spec(layouts))});
}

/// The input that output o of a dimension of `n` entries copies.
using Source = std::int64_t (*)(std::int64_t position, std::int64_t n);

std::int64_t reflected(std::int64_t position, std::int64_t n)
{
    if (position < 0) return -position;
    return position < n ? position : 2 * (n - 1) - position;
}

std::int64_t repeated(std::int64_t position, std::int64_t n)
{
    return std::clamp<std::int64_t>(position, 0, n - 1);
}

struct EdgePadding {
    std::vector<TapMap> cut;
    AxisLayouts input_layouts, output_layouts;
    std::vector<std::int64_t> uncut_pad;  // the call's padding, zero along cut dimensions
    bool pads_uncut = false;
};

std::optional<EdgePadding> plan(const RuleCall& call, const at::Tensor& input, const std::vector<std::int64_t>& pad,
                                Source source)
{
    const auto n = std::ssize(pad) / 2;
    const auto num_dims = input.dim();
    if (num_dims < n || num_dims > n + 2 || input.numel() == 0) return std::nullopt;
    EdgePadding padding;
    padding.input_layouts = without_pending(layouts_of(call, input));
    const auto axes = cut_axes(padding.input_layouts, num_dims, num_dims - n);
    if (!axes) return std::nullopt;
    padding.output_layouts = padding.input_layouts;
    padding.uncut_pad = pad;
    for (auto dim = num_dims - n; dim < num_dims; ++dim) {
        const auto position = position_of(dim, num_dims);
        const auto front = pad[position], back = pad[position + 1], size = input.size(dim);
        if (front < 0 || back < 0 || (source == reflected && std::max(front, back) >= size)) return std::nullopt;
        const auto axis = (*axes)[dim];
        if (is_whole(call, axis)) {
            padding.pads_uncut |= front > 0 || back > 0;
            if (axis >= 0)
                padding.output_layouts[axis] = cut_layout(padding.input_layouts[axis], dim, {front + size + back});
            continue;
        }
        Taps taps{size, front + size + back, {{}}, {}};
        for (std::int64_t o = 0; o < taps.out; ++o) taps.index[0].push_back(source(o - front, size));
        padding.cut.emplace_back(call, axis, padding.input_layouts[axis], std::move(taps),
                                 [=](std::int64_t a) { return a + front; });
        padding.output_layouts[axis] = padding.cut.back().output_layout();
        padding.uncut_pad[position] = padding.uncut_pad[position + 1] = 0;
    }
    return padding;
}

/// reflection_padNd(self, padding), replication_padNd(self, padding)
template <Source source>
void edge_pad(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto padding = plan(call, input, call.arg(1).toIntVector(), source);
    if (!padding) return gathered_rule(call);

    call.reduce({input});
    auto local = local_of(input);
    for (const auto& map : padding->cut) local = map.apply(local);
    const auto spec = call.spec(padding->output_layouts);
    if (!padding->pads_uncut) {
        const bool is_input = local.is_alias_of(local_of(input));  // which the result never is, as in LibTorch
        return call.finish({wrap(is_input ? local.clone() : local, spec)});
    }
    if (local.numel() == 0) {
        auto shape = local.sizes().vec();
        for (std::size_t i = 0; i < padding->uncut_pad.size(); i += 2)
            shape[shape.size() - 1 - i / 2] += padding->uncut_pad[i] + padding->uncut_pad[i + 1];
        return call.finish({wrap(at::empty(shape, local.options()), spec)});
    }
    call.arg(0) = local;
    call.arg(1) = padding->uncut_pad;
    call.run({spec});
}

/// reflection_padNd_backward(grad_output, self, padding), replication_padNd_backward(grad_output, self, padding)
template <Source source>
void edge_pad_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), input = call.tensor(1);
    const auto padding = plan(call, input, call.arg(2).toIntVector(), source);
    if (!padding) return gathered_rule(call);

    call.reduce({gradient});
    auto local = local_of(with_layouts(call, gradient, padding->output_layouts));
    const auto spec = call.spec(padding->input_layouts);
    if (padding->pads_uncut) {
        auto shape = spec->local_shape(input.sizes());
        for (const auto& map : padding->cut) shape[map.dim()] = map.num_outputs();
        auto before = at::empty(shape, local.options());
        if (before.numel() > 0) {
            call.arg(0) = local;
            call.arg(1) = before;
            call.arg(2) = padding->uncut_pad;
            before = call.run_local()[0].toTensor();
            for (auto map = padding->cut.rbegin(); map != padding->cut.rend(); ++map)
                before = map->apply_adjoint(before);
            return call.push({wrap(before, spec)});
        }
        local = before;
    }
    for (auto map = padding->cut.rbegin(); map != padding->cut.rend(); ++map) local = map->apply_adjoint(local);
    call.finish({wrap(local, spec)});
}

/// Circular padding as a concatenation: the composite operator writes to storage, which a sharded tensor does not have.
at::Tensor circular_pad(const at::Tensor& input, at::IntArrayRef pad)
{
    const auto n = std::ssize(pad) / 2;
    TORCH_CHECK(pad.size() % 2 == 0 && (input.dim() == n + 1 || input.dim() == n + 2),
                "Invalid padding size, expected an even number of amounts for ",
                "the last dimensions of a tensor with one or two more; found ", pad.size(), " for ", input.dim(),
                " dimensions");
    auto result = input;
    bool is_view = true;
    for (auto dim = input.dim() - n; dim < input.dim(); ++dim) {
        const auto position = position_of(dim, input.dim());
        const auto front = pad[position], back = pad[position + 1], size = input.size(dim);
        // Negative amounts cut entries off.
        const auto begin = std::max<std::int64_t>(0, -front), end = size - std::max<std::int64_t>(0, -back);
        TORCH_CHECK(begin <= end, "Negative padding value is resulting in an empty dimension");
        TORCH_CHECK(front <= end - begin && back <= end - begin,
                    "Padding value causes wrapping around more than once.");
        std::vector<at::Tensor> pieces;
        if (front > 0) pieces.push_back(result.slice(dim, end - front, end));
        pieces.push_back(result.slice(dim, begin, end));
        if (back > 0) pieces.push_back(result.slice(dim, begin, begin + back));
        result = pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
        is_view = is_view && pieces.size() == 1;
    }
    return is_view ? result.clone() : result;
}

const RuleRegistration padding_rules[] = {
    {"padding", {"aten::constant_pad_nd"}, constant_pad},
    {"padding", {"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d"}, edge_pad<reflected>},
    {"padding", {"aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d"}, edge_pad<repeated>},
    {"padding",
     {"aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::reflection_pad3d_backward"},
     edge_pad_backward<reflected>},
    {"padding",
     {"aten::replication_pad1d_backward", "aten::replication_pad2d_backward", "aten::replication_pad3d_backward"},
     edge_pad_backward<repeated>},
};

TORCH_LIBRARY_IMPL(aten, PrivateUse2, library)
{
    library.impl("_pad_circular", circular_pad);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse2, library)
{
    library.impl("_pad_circular", circular_pad);
}

}  // namespace
}  // namespace meshard
