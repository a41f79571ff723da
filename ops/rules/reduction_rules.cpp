// SPDX-License-Identifier: Apache-2.0
// Sums and means over any dimensions, and item().
#include "ops/rules/placement_algebra.h"
#include "sharding/ranks/type_limits.h"
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

/// The type of a sum without `dtype`.
at::ScalarType sum_result_type(at::ScalarType type)
{
    return at::isIntegralType(type, true) ? at::kLong : type;
}

/// sum(self), sum(self, dims?, keepdim): linear, so that pending sums stay pending; other pending values are reduced.
void sum(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    keep_sums_only(call, tensor);
    const bool has_dims = call.schema().overload_name() == "dim_IntList";
    const auto dtype_arg = has_dims ? 3 : 1;
    const auto dtype =
        call.arg(dtype_arg).isNone() ? sum_result_type(tensor.scalar_type()) : call.arg(dtype_arg).toScalarType();
    if (!keeps_sums(tensor.scalar_type(), dtype)) call.reduce({tensor});
    const auto dims = has_dims ? reduced_dims(call, tensor, 1) : std::vector<std::int64_t>{};
    const auto spec =
        call.spec(reduced_layouts(layouts_of(call, tensor), dims, has_dims && call.arg(2).toBool(), Reduction::Sum));
    run_sum(call, spec, dtype_arg);
}

/// The local sum divided by the number of entries of the whole: ranks with fewer rows weigh less. Half-precision
/// numbers are rounded after the division, as LibTorch does it: their sum may exceed what the type holds.
at::Tensor sum_over_count(const at::Tensor& x, c10::IntArrayRef dims, bool keepdim, at::ScalarType dtype)
{
    const bool over_all = dims.empty() || x.dim() == 0;
    std::int64_t count = over_all ? x.numel() : 1;
    for (std::size_t i = 0; !over_all && i < dims.size(); ++i) count *= x.size(dims[i]);
    const auto& local = local_of(x);
    const auto wide = sum_type(dtype);
    const auto total =
        dims.empty() ? at::sum(local, wide) : at::sum(local, at::OptionalIntArrayRef(dims), keepdim, wide);
    return total.div_(static_cast<double>(count)).to(dtype);
}

void mean(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    keep_sums_only(call, tensor);
    const bool has_dims = call.schema().overload_name() == "dim";
    const auto dims = has_dims ? reduced_dims(call, tensor, 1) : std::vector<std::int64_t>{};
    const bool keepdim = has_dims && call.arg(2).toBool();
    const auto dtype_arg = has_dims ? 3 : 1;
    const auto dtype = call.arg(dtype_arg).isNone() ? tensor.scalar_type() : call.arg(dtype_arg).toScalarType();
    if (!keeps_sums(tensor.scalar_type(), dtype)) call.reduce({tensor});
    const auto spec = call.spec(reduced_layouts(layouts_of(call, tensor), dims, keepdim, Reduction::Sum));
    call.finish({wrap(sum_over_count(tensor, dims, keepdim, dtype), spec)});
}

/// item(): the same number on every rank.
void read_number(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    call.reduce({tensor});
    auto whole = tensor;
    for (const auto axis : call.axes()) whole = call.with_layout(whole, axis, {});
    call.set_local(0, at::Tensor(local_of(whole)));
    call.push(call.run_local());
}

// --- direct kernels for named dimensions of tensors without a pending sum --------------------------------------------

/// The layout of the sum; null if the rule is needed.
SpecPtr spec_of_sum(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim)
{
    if (!dims || dims->empty() || !is_ready(x) || spec_of(x)->has_partial()) return nullptr;
    at::DimVector summed;
    for (const auto dim : *dims) summed.push_back(from_front(dim, x.dim()));
    return with_axes(spec_of(x), reduced_layouts(spec_of(x)->axes, summed, keepdim, Reduction::Sum));
}

std::optional<at::Tensor> direct_sum(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim,
                                     std::optional<at::ScalarType> dtype)
{
    const auto spec = spec_of_sum(x, dims, keepdim);
    if (!spec || (spec->has_partial() && dtype.value_or(x.scalar_type()) == at::kHalf)) return std::nullopt;
    return fresh(at::sum(local_of(x), dims, keepdim, dtype), spec);
}

std::optional<at::Tensor> direct_mean(const at::Tensor& x, at::OptionalIntArrayRef dims, bool keepdim,
                                      std::optional<at::ScalarType> dtype)
{
    const auto spec = spec_of_sum(x, dims, keepdim);
    if (!spec) return std::nullopt;
    return fresh(sum_over_count(x, *dims, keepdim, dtype.value_or(x.scalar_type())), spec);
}

const DirectRegistration reduction_kernels[] = {
    direct_kernel<at::_ops::sum_dim_IntList, &direct_sum>(sum),
    direct_kernel<at::_ops::mean_dim, &direct_mean>(mean),
};

const RuleRegistration reduction_rules[] = {
    {"reductions", {"aten::sum", "aten::sum.dim_IntList"}, sum},
    {"reductions", {"aten::mean", "aten::mean.dim"}, mean},
    {"reductions", {"aten::_local_scalar_dense"}, read_number},
};

}  // namespace
}  // namespace meshard
