// SPDX-License-Identifier: Apache-2.0
// Entries read and written one by one along a dimension: gather, scatter and others. Along the other dimensions index
// and values correspond entry by entry, so that these may stay cut; along the dimension itself every rank processes the
// rows that it holds.
#include "ops/rules/own_rows.h"
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/redistribute.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// gather(self, dim, index, sparse_grad)
void gather(RuleCall& call)
{
    const auto tensor = call.tensor(0), index = call.tensor(2);
    if (tensor.dim() == 0 || index.dim() != tensor.dim() || tensor.numel() == 0 || index.numel() == 0)
        return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    auto source = without_pending(layouts_of(call, tensor)), picks = without_pending(layouts_of(call, index));
    AxisLayouts result(call.num_axes());
    std::int64_t row_axis = -1;
    for (const auto axis : call.axes()) {
        auto &from = source[axis], &pick = picks[axis];
        if (from.is_shard() && from.placement.dim == dim) {
            if (!pick.is_shard() && can_sum(tensor) && row_axis < 0) {
                row_axis = axis;
                result[axis] = {Partial(), nullptr, 1};
                continue;
            }
            from = {};
        }
        const auto& cut = from.is_shard() ? from : pick;
        if (!cut.is_shard()) continue;
        const auto d = cut.placement.dim;
        if (d != dim) {
            if (tensor.size(d) != index.size(d)) return gathered_rule(call);
            from = pick = AxisLayout(cut);
        }
        result[axis] = pick;
    }
    if (cut_one_dim_twice(source) || cut_one_dim_twice(picks) || cut_one_dim_twice(result)) return gathered_rule(call);
    call.reduce({tensor, index});
    const auto local = local_of(with_layouts(call, tensor, source)), rows = local_of(with_layouts(call, index, picks));
    at::Tensor picked;
    if (row_axis < 0) {
        picked = at::gather(local, dim, rows);
    } else {
        const auto own = own_rows(source[row_axis], call.coordinate(row_axis), rows);
        const auto nothing = nothing_added(local);
        picked = local.size(dim) == 0 ? at::full(rows.sizes(), nothing, local.options())
                                      : at::gather(local, dim, own.here).masked_fill_(own.held.logical_not(), nothing);
    }
    call.finish({wrap(picked, call.spec(result))});
}

at::Tensor zeros_of(const RuleCall& call, const at::Tensor& plain)
{
    return wrap(at::zeros_like(plain, at::MemoryFormat::Contiguous), call.replicated());
}

/// A plain tensor that is added to gets the sum over all ranks: one message of its size, for any number of entries.
void add_to_plain(RuleCall& call, const at::Tensor& sum)
{
    const auto tensor = call.tensor(0);
    tensor.add_(local_of(convert(sum, call.replicated())));
    call.finish({tensor});
}

/// Runs the operator, whose first argument is `local`, or with `has_spare_row` a copy with one row more, and returns
/// what it has written: `tensor` in place, else a new tensor.
void push_written(RuleCall& call, const at::Tensor& tensor, const at::Tensor& local, std::int64_t dim,
                  bool has_spare_row, const AxisLayouts& result)
{
    auto written = call.run_local()[0].toTensor();
    if (has_spare_row) written = written.narrow(dim, 0, local.size(dim));
    if (call.mutated_arg() != 0) return call.push({wrap(written.contiguous(), call.spec(result))});
    if (has_spare_row) local.copy_(written);
    call.push({tensor});
}

/// scatter, scatter_add, scatter_reduce (self, dim, index, src or value, ...), also in place.
void scatter(RuleCall& call)
{
    const auto tensor = call.tensor(0), index = call.tensor(2), values = call.tensor(3);
    const bool in_place = call.mutated_arg() == 0;
    if (tensor.dim() == 0 || index.dim() != tensor.dim() || tensor.numel() == 0 || index.numel() == 0)
        return gathered_rule(call);
    if (in_place && !is_sharded(tensor) && call.name() == "aten::scatter_add_" && can_sum(tensor)) {
        return add_to_plain(call, at::scatter_add(zeros_of(call, tensor), call.arg(1).toInt(), index, values));
    }
    if ((in_place && !is_sharded(tensor)) || (values.defined() && values.sizes() != index.sizes()))
        return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    const bool adds = call.name().starts_with("aten::scatter_add") && can_sum(tensor) && !in_place;
    auto target = without_pending(layouts_of(call, tensor)), entries = without_pending(layouts_of(call, index));
    auto result = target;
    std::int64_t row_axis = -1;
    bool counts = true;  // whether this rank adds the old value: only one may
    for (const auto axis : call.axes()) {
        auto &to = target[axis], &entry = entries[axis];
        if (to.is_shard() && to.placement.dim == dim) {
            if (row_axis >= 0) return gathered_rule(call);
            row_axis = axis;
            entry = {};
        } else if (to.is_shard()) {
            if (tensor.size(to.placement.dim) != index.size(to.placement.dim)) return gathered_rule(call);
            entry = to;
        } else if (entry.is_shard()) {
            const auto d = entry.placement.dim;
            if (d != dim && tensor.size(d) == index.size(d) && !in_place) {
                to = result[axis] = entry;
            } else if (adds && d == dim) {
                result[axis] = {Partial(), nullptr, 1};
                counts &= call.coordinate(axis) == 0;
            } else {
                entry = {};
            }
        }
    }
    if (cut_one_dim_twice(target) || cut_one_dim_twice(entries)) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto local = local_of(with_layouts(call, tensor, target));
    auto rows = local_of(with_layouts(call, index, entries));
    const auto base = counts ? local : at::zeros_like(local);
    call.arg(0) = row_axis < 0 ? base : with_spare_row(base, dim, target[row_axis], call.coordinate(row_axis), rows);
    call.arg(2) = rows;
    if (values.defined()) call.arg(3) = local_of(with_layouts(call, values, entries));
    push_written(call, tensor, local, dim, row_axis >= 0, result);
}

/// index_add(self, dim, index, source, alpha), also in place; index_copy and index_reduce have the same arguments.
void index_add(RuleCall& call)
{
    const auto tensor = call.tensor(0), index = call.tensor(2), source = call.tensor(3);
    const bool in_place = call.mutated_arg() == 0, adds = call.name() == "aten::index_add" && can_sum(tensor);
    if (tensor.dim() == 0 || source.dim() != tensor.dim() || index.dim() != 1 || tensor.numel() == 0)
        return gathered_rule(call);
    if (in_place && !is_sharded(tensor) && call.name() == "aten::index_add_" && can_sum(tensor)) {
        return add_to_plain(
            call, at::index_add(zeros_of(call, tensor), call.arg(1).toInt(), index, source, call.arg(4).toScalar()));
    }
    if (in_place && !is_sharded(tensor)) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    auto shape = tensor.sizes().vec();
    shape[dim] = index.numel();
    TORCH_CHECK(source.sizes() == shape, call.name(), ": expected a source of shape ", c10::IntArrayRef(shape),
                ", one entry of dimension ", dim, " for each index and those of self in the others, found ",
                source.sizes(), ".");
    auto target = without_pending(layouts_of(call, tensor)), added = without_pending(layouts_of(call, source));
    AxisLayouts rows_axes(call.num_axes());
    auto result = target;
    std::int64_t row_axis = -1;
    bool counts = true;
    for (const auto axis : call.axes()) {
        auto &to = target[axis], &from = added[axis];
        if (to.is_shard() && to.placement.dim == dim) {
            if (row_axis >= 0) return gathered_rule(call);
            row_axis = axis;
            from = {};
        } else if (to.is_shard()) {
            from = to;
        } else if (from.is_shard() && from.placement.dim != dim && !in_place) {
            to = result[axis] = from;
        } else if (from.is_shard() && from.placement.dim == dim && adds) {
            rows_axes[axis] = from;
            rows_axes[axis].placement.dim = 0;
            result[axis] = {Partial(), nullptr, 1};
            counts &= call.coordinate(axis) == 0;
        } else {
            from = {};
        }
    }
    if (cut_one_dim_twice(target) || cut_one_dim_twice(added)) return gathered_rule(call);
    call.reduce({tensor, index, source});
    const auto local = local_of(with_layouts(call, tensor, target));
    auto rows = local_of(with_layouts(call, index, rows_axes));
    const auto base = counts ? local : at::zeros_like(local);
    if (row_axis < 0 && local.numel() == 0) check_positions(rows, local.size(dim));
    call.arg(0) = row_axis < 0 ? base : with_spare_row(base, dim, target[row_axis], call.coordinate(row_axis), rows);
    call.arg(2) = rows;
    call.arg(3) = local_of(with_layouts(call, source, added));
    push_written(call, tensor, local, dim, row_axis >= 0, result);
}

/// index_fill(self, dim, index, value), also in place.
void index_fill(RuleCall& call)
{
    const auto tensor = call.tensor(0), index = call.tensor(2);
    if (!is_sharded(tensor) || tensor.dim() == 0 || index.dim() > 1) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    const auto cutting = axes_cutting(call, tensor, {dim});
    if (cutting.size() > 1) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto spec = spec_of(tensor);
    const auto local = local_of(tensor);
    auto rows = local_of(with_layouts(call, index, AxisLayouts(call.num_axes()))).reshape({-1});
    rows = at::where(rows.lt(0), rows + tensor.size(dim), rows);
    const auto value = call.tensor(3);
    if (value.defined()) call.arg(3) = local_of(value);
    if (!cutting.empty())
        call.arg(0) = with_spare_row(local, dim, spec->axes[cutting[0]], call.coordinate(cutting[0]), rows);
    else
        call.arg(0) = local;
    call.arg(2) = rows;
    push_written(call, tensor, local, dim, !cutting.empty(), layouts_of(call, tensor));
}

const RuleRegistration scatter_rules[] = {
    {"indexing", {"aten::index_fill", "aten::index_fill_"}, index_fill},
    {"indexing", {"aten::gather"}, gather},
    {"indexing",
     {"aten::scatter.src", "aten::scatter.value", "aten::scatter_.src", "aten::scatter_.value", "aten::scatter_add",
      "aten::scatter_add_", "aten::scatter_reduce.two", "aten::scatter_reduce_.two"},
     scatter},
    {"indexing",
     {"aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_", "aten::index_reduce",
      "aten::index_reduce_"},
     index_add},
};

}  // namespace
}  // namespace meshard
