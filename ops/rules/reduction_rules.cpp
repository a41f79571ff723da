// SPDX-License-Identifier: Apache-2.0
// Sums and means over any dimensions, and item().
#include "ops/rules/placement_algebra.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

std::vector<std::int64_t> reduced_dims(const RuleCall& call, const at::Tensor& tensor, std::int64_t arg)
{
    std::vector<std::int64_t> dims;
    if (arg < call.num_args() && call.arg(arg).isIntList())
        dims = call.arg(arg).toIntVector();
    else if (arg < call.num_args() && call.arg(arg).isInt())
        dims = {call.arg(arg).toInt()};
    for (auto& dim : dims) dim = from_front(dim, tensor.dim());
    return dims;
}

/// sum(self), sum(self, dims?, keepdim): linear, so pending sums stay pending; others are completed.
void sum(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        const auto& layout = call.layout(tensor, axis);
        if (layout.is_partial() && layout.placement.reduction != Reduction::Sum) call.reduce({tensor});
    }
    const bool has_dims = call.schema().overload_name() == "dim_IntList";
    const auto dims = has_dims ? reduced_dims(call, tensor, 1) : std::vector<std::int64_t>{};
    const auto spec = call.spec(reduced_layouts(call, tensor, dims, has_dims && call.arg(2).toBool(), Reduction::Sum));
    call.make_local();
    call.run({spec});
}

/// The local sum over the whole's count: ranks with fewer rows weigh less.
void mean(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) {
        const auto& layout = call.layout(tensor, axis);
        if (layout.is_partial() && layout.placement.reduction != Reduction::Sum) call.reduce({tensor});
    }
    const bool has_dims = call.schema().overload_name() == "dim";
    const auto dims = has_dims ? reduced_dims(call, tensor, 1) : std::vector<std::int64_t>{};
    const bool keepdim = has_dims && call.arg(2).toBool();
    const auto dtype_arg = has_dims ? 3 : 1;
    const auto dtype = call.arg(dtype_arg).isNone() ? tensor.scalar_type() : call.arg(dtype_arg).toScalarType();
    std::int64_t count = 1;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
        if (dims.empty() || std::find(dims.begin(), dims.end(), dim) != dims.end()) count *= tensor.size(dim);
    }
    const auto spec = call.spec(reduced_layouts(call, tensor, dims, keepdim, Reduction::Sum));
    const auto& local = local_of(tensor);
    const auto total = dims.empty() ? at::sum(local, dtype) : at::sum(local, at::OptionalIntArrayRef(dims), keepdim, dtype);
    call.finish({wrap(total.div_(static_cast<double>(count)), spec)});
}

/// item(): the same number on every rank.
void read_number(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    call.reduce({tensor});
    auto whole = tensor;
    for (std::int64_t axis = 0; axis < call.num_axes(); ++axis) whole = call.with_layout(whole, axis, {});
    call.set_local(0, at::Tensor(local_of(whole)));
    call.push(call.run_local());
}

/// sum(self, dims, keepdim) without boxes: over dimensions that are whole on every rank, those behind the cut ones alone unless they are kept, or over all cut
/// ones.
std::optional<at::Tensor> direct_sum(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim, std::optional<at::ScalarType> dtype)
{
    if (!dims || dims->empty() || !is_ready(x)) return std::nullopt;
    bool stays = true, all = true;
    for (const auto& axis : spec_of(x)->axes) {
        if (axis.is_partial()) return std::nullopt;
        if (!axis.is_shard()) continue;
        bool reduced = false;
        for (const auto dim : *dims) {
            const auto d = from_front(dim, x.dim());
            reduced |= d == axis.placement.dim;
            stays &= d > axis.placement.dim || (keepdim && d != axis.placement.dim);
        }
        all &= reduced;
    }
    if (!stays && !all) return std::nullopt;
    return fresh(at::sum(local_of(x), dims, keepdim, dtype), stays ? spec_of(x) : pending_sum(spec_of(x)));
}

const DirectRegistration d_sum = direct_kernel<at::_ops::sum_dim_IntList, &direct_sum>(sum);

const RuleRegistration r_sum("reductions", {"aten::sum", "aten::sum.dim_IntList"}, sum);
const RuleRegistration r_mean("reductions", {"aten::mean", "aten::mean.dim"}, mean);
const RuleRegistration r_item("reductions", {"aten::_local_scalar_dense"}, read_number);

}  // namespace
}  // namespace meshard
