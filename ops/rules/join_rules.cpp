// SPDX-License-Identifier: Apache-2.0
// Operators that concatenate tensors or repeat one.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

namespace meshard {
namespace {

/// Concatenates tensors along the dimension that `axis` cuts. Each rank gets as many rows of the result as it holds of
/// the operands together: every operand is redistributed along these boundaries, and a rank's parts of all operands are
/// then concatenated.
void join_cut(RuleCall& call, const std::vector<at::Tensor>& tensors, std::int64_t dim, AxisLayouts axes,
              std::int64_t axis)
{
    const auto ranks = call.device_mesh()->size(axis);
    auto extents = std::make_shared<Extents>(ranks, 0);
    for (const auto& tensor : tensors) {
        const auto& layout = call.layout(tensor, axis);
        const bool cut = layout.is_shard() && layout.placement.dim == dim;
        const auto even = even_extents(tensor.size(dim), ranks);
        for (std::int64_t r = 0; r < ranks; ++r) (*extents)[r] += cut ? layout.blocks * (*layout.extents)[r] : even[r];
    }
    c10::List<at::Tensor> locals;
    std::int64_t begin = 0;  // offset of the operand in the result
    for (const auto& tensor : tensors) {
        const auto end = begin + tensor.size(dim);
        auto own = std::make_shared<Extents>();
        std::int64_t border = 0;
        for (const auto extent : *extents) {
            own->push_back(std::max<std::int64_t>(0, std::min(end, border + extent) - std::max(begin, border)));
            border += extent;
        }
        axes[axis] = {Shard(dim), std::move(own), 1};
        locals.push_back(local_of(with_layouts(call, tensor, axes)));
        begin = end;
    }
    axes[axis] = {Shard(dim), std::move(extents), 1};
    call.arg(0) = locals;
    call.run({call.spec(axes)});
}

/// cat(tensors, dim) and stack(tensors, dim): the operands are converted to one layout.
void join(RuleCall& call)
{
    auto tensors = call.tensor_list(0);
    const bool stacks = call.name() == "aten::stack";
    const auto is_empty_legacy = [&](const at::Tensor& tensor) {
        return !stacks && tensor.dim() == 1 && tensor.size(0) == 0;
    };
    const auto type = at::native::result_type(tensors);
    if (!std::ranges::all_of(tensors, is_empty_legacy))
        std::erase_if(tensors, is_empty_legacy);
    else if (!tensors.empty())
        tensors.resize(1);
    // Also that of an empty operand that has been left out.
    for (auto& tensor : tensors) tensor = tensor.to(type);
    const auto num_dims = tensors[0].dim() + (stacks ? 1 : 0);
    const auto dim = from_front(call.arg(1).toInt(), num_dims);

    bool mixed = false;  // some operands are pending and others not: all are reduced
    for (const auto axis : call.axes()) {
        std::size_t pending = 0;
        for (const auto& tensor : tensors) pending += call.layout(tensor, axis).is_partial();
        mixed |= pending > 0 && pending < tensors.size();
        for (const auto& tensor : tensors) {
            mixed |= pending > 0 &&
                     call.layout(tensor, axis).placement.reduction != call.layout(tensors[0], axis).placement.reduction;
        }
    }
    if (mixed) call.reduce(tensors);

    AxisLayouts axes(call.num_axes());
    for (const auto axis : call.axes()) {
        for (const auto& tensor : tensors) {
            if (!call.layout(tensor, axis).is_replicate()) axes[axis] = call.layout(tensor, axis);
        }
        for (std::int64_t before = 0; before < axis; ++before) {
            const bool twice = axes[before].is_shard() && axes[axis].is_shard() &&
                               axes[before].placement.dim == axes[axis].placement.dim;
            if (twice) axes[axis] = {};
        }
    }
    if (!stacks) {
        const auto cut =
            std::ranges::find_if(axes, [&](const auto& axis) { return axis.is_shard() && axis.placement.dim == dim; });
        if (cut != axes.end()) return join_cut(call, tensors, dim, axes, cut - axes.begin());
    }
    c10::List<at::Tensor> locals;
    for (const auto& tensor : tensors) locals.push_back(local_of(with_layouts(call, tensor, axes)));
    if (stacks) axes = map_dims(axes, [&](std::int64_t d) { return d >= dim ? d + 1 : d; });
    call.arg(0) = locals;
    call.run({call.spec(axes)});
}

/// repeat(self, repeats): the result has one more block of the cut rows for every repetition. Pending sums are reduced
/// first, as in `expand`.
void repeat(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto repeats = call.arg(1).toIntVector();
    if (c10::multiply_integers(repeats) > 1 && spec_of(tensor)->has_partial()) call.reduce({tensor});
    const auto added = std::ssize(repeats) - tensor.dim();
    auto axes = map_dims(layouts_of(call, tensor), [&](std::int64_t dim) { return dim + added; });
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        if (repeats[axis.placement.dim] < 1) return gathered_rule(call);
        axis.blocks *= repeats[axis.placement.dim];
    }
    call.make_local();
    call.run({call.spec(axes)});
}

// --- direct kernels for tensors that all have the same layout --------------------------------------------------------

struct AlikeParts {
    std::vector<at::Tensor> locals;
    SpecPtr spec;  // null if the layouts differ
    std::int64_t num_dims = 0;
};

template <class Tensors>
AlikeParts alike_parts(const Tensors& tensors)
{
    AlikeParts parts;
    parts.locals.reserve(tensors.size());
    for (const at::Tensor& tensor : tensors) {
        const bool alike =
            is_ready(tensor) && (!parts.spec || (tensor.dim() == parts.num_dims && *spec_of(tensor) == *parts.spec));
        if (!alike) return {};
        if (!parts.spec) parts.spec = spec_of(tensor);
        parts.num_dims = tensor.dim();
        parts.locals.push_back(local_of(tensor));
    }
    return parts;
}

/// Concatenates along a dimension that every rank holds whole.
std::optional<at::Tensor> direct_cat(const at::ITensorListRef& tensors, std::int64_t dim)
{
    const auto parts = alike_parts(tensors);
    const auto d = existing_dim(dim, parts.num_dims);
    if (!parts.spec || !d || parts.spec->axis_of_dim(*d) >= 0) return std::nullopt;
    return fresh(at::cat(parts.locals, *d), parts.spec);
}

std::optional<at::Tensor> direct_stack(at::TensorList tensors, std::int64_t dim)
{
    const auto parts = alike_parts(tensors);
    const auto d = existing_dim(dim, parts.num_dims + 1);
    if (!parts.spec || !d) return std::nullopt;
    return fresh(at::stack(parts.locals, *d),
                 with_dims(parts.spec, [&](std::int64_t cut) { return cut + (cut >= *d); }));
}

const DirectRegistration join_kernels[] = {
    direct_kernel<at::_ops::cat, &direct_cat>(join),
    direct_kernel<at::_ops::stack, &direct_stack>(join),
};

const RuleRegistration join_rules[] = {
    {"views", {"aten::cat", "aten::stack"}, join},
    {"views", {"aten::repeat"}, repeat},
};

}  // namespace
}  // namespace meshard
