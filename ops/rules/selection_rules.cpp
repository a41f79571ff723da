// SPDX-License-Identifier: Apache-2.0
// Entries selected by a mask have the order of the whole: rank after rank if a leading dimension is cut. The ranks
// exchange their counts in one small message.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// The axis that cuts a tensor such that its entries, in order, are those of the ranks one after the other; -1 for any
/// other sharding.
std::int64_t leading_axis(const RuleCall& call, const at::Tensor& tensor)
{
    std::int64_t found = -1;
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(tensor, axis);
        if (!layout.is_shard()) continue;
        if (found >= 0 || layout.blocks > 1) return -1;
        for (std::int64_t dim = 0; dim < layout.placement.dim; ++dim) {
            if (tensor.size(dim) != 1) return -1;
        }
        found = axis;
    }
    return found;
}

/// Layouts of the entries that the ranks of `axis` have selected, one rank after the other along dimension 0.
AxisLayouts found_layouts(const RuleCall& call, std::int64_t axis, std::int64_t count)
{
    auto extents = std::make_shared<Extents>(call.device_mesh()->group(axis).all_gather_integers(count));
    AxisLayouts axes(call.num_axes());
    axes[axis] = {Shard(0), std::move(extents), 1};
    return axes;
}

/// masked_select(self, mask)
void masked_select(RuleCall& call)
{
    const auto tensor = call.tensor(0), mask = call.tensor(1);
    const auto& leader = is_sharded(tensor) && spec_of(tensor)->has_shard() ? tensor : mask;
    const auto axis = leading_axis(call, leader);
    if (axis < 0 || tensor.sizes() != mask.sizes()) return gathered_rule(call);
    call.reduce({tensor, mask});
    const auto axes = layouts_of(call, leader);
    const auto found =
        at::masked_select(local_of(with_layouts(call, tensor, axes)), local_of(with_layouts(call, mask, axes)));
    call.finish({wrap(found, call.spec(found_layouts(call, axis, found.size(0))))});
}

/// masked_scatter(self, mask, source), also in place: copies the source's first entries, in order.
void masked_scatter(RuleCall& call)
{
    const auto tensor = call.tensor(0), mask = call.tensor(1), source = call.tensor(2);
    const auto axis = leading_axis(call, tensor);
    if (axis < 0 || tensor.sizes() != mask.sizes() || source.dim() != 1) return gathered_rule(call);
    call.reduce({tensor, mask, source});
    const auto& local = local_of(tensor);
    const auto own_mask = local_of(with_layouts(call, mask, layouts_of(call, tensor)));
    auto wanted = found_layouts(call, axis, own_mask.sum().item<std::int64_t>());
    // If the source is too short, the operator itself throws; if it is too long, the last rank gets the unused rest.
    auto extents = std::make_shared<Extents>(*wanted[axis].extents);
    const auto rest = source.size(0) - wanted[axis].total();
    if (rest < 0) return gathered_rule(call);
    extents->back() += rest;
    wanted[axis].extents = std::move(extents);
    const auto values = local_of(with_layouts(call, source, wanted));
    if (call.mutated_arg() == 0) {
        local.masked_scatter_(own_mask, values);
        return call.finish({tensor});
    }
    call.finish({wrap(at::masked_scatter(local, own_mask, values), call.spec(layouts_of(call, tensor)))});
}

/// nonzero(self): one row of indices for each entry.
void nonzero(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto axis = leading_axis(call, tensor);
    if (axis < 0) return gathered_rule(call);
    call.reduce({tensor});
    const auto layout = call.layout(tensor, axis);
    auto found = at::nonzero(local_of(tensor));
    found.select(1, layout.placement.dim).add_(layout.offset(call.coordinate(axis)));
    call.finish({wrap(found, call.spec(found_layouts(call, axis, found.size(0))))});
}

/// tril, triu (self, diagonal), also in place: the diagonal is shifted by this rank's first row and column.
void triangle(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() < 2 || !is_sharded(tensor)) return gathered_rule(call);
    call.reduce({tensor});
    auto diagonal = call.arg(1).toInt();
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(tensor, axis);
        const auto from_last = layout.is_shard() ? tensor.dim() - layout.placement.dim : 0;
        if (from_last != 1 && from_last != 2) continue;
        if (layout.blocks > 1) return gathered_rule(call);
        diagonal += (from_last == 2 ? 1 : -1) * layout.offset(call.coordinate(axis));
    }
    const auto spec = call.spec(layouts_of(call, tensor));
    call.make_local();
    call.arg(1) = diagonal;
    call.run({spec});
}

/// bucketize(self, boundaries, ...): entry by entry.
void bucketize(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (!is_sharded(tensor)) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto spec = call.spec(layouts_of(call, tensor));
    call.set_local(1, at::Tensor(local_of(with_layouts(call, call.tensor(1), AxisLayouts(call.num_axes())))));
    call.make_local();
    call.run({spec});
}

const RuleRegistration selection_rules[] = {
    {"indexing", {"aten::masked_select"}, masked_select},
    {"indexing", {"aten::masked_scatter", "aten::masked_scatter_"}, masked_scatter},
    {"indexing", {"aten::nonzero"}, nonzero},
    {"indexing", {"aten::tril", "aten::triu", "aten::tril_", "aten::triu_"}, triangle},
    {"indexing", {"aten::bucketize.Tensor"}, bucketize},
};

}  // namespace
}  // namespace meshard
