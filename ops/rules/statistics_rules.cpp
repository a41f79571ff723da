// SPDX-License-Identifier: Apache-2.0
// Reductions in two steps, over a rank's own rows and then over the ranks: extremes, products, norms, variances and
// others.
#include "ops/rules/rank_parts.h"
#include "sharding/ranks/type_limits.h"

#include <ATen/ATen.h>

#include <limits>
#include <utility>

namespace meshard {
namespace {

using Merge = std::function<at::Tensor(const at::Tensor& parts)>;  // (ranks, ...) to (...)

std::vector<std::int64_t> dims_of(const RuleCall& call, std::int64_t arg)
{
    const auto num_dims = call.tensor(0).dim();
    if (arg < 0 || call.arg(arg).isNone()) return dims_or_all({}, num_dims);
    if (call.arg(arg).isInt()) return {from_front(call.arg(arg).toInt(), num_dims)};
    return dims_or_all(call.arg(arg).toIntVector(), num_dims);
}

std::int64_t arg_named(const RuleCall& call, std::string_view name)
{
    for (std::int64_t i = 0; i < call.num_args(); ++i) {
        if (call.schema().arguments()[i].name() == name) return i;
    }
    return -1;
}

bool keeps_dims(const RuleCall& call)
{
    const auto arg = arg_named(call, "keepdim");
    return arg >= 0 && call.arg(arg).toBool();
}

/// A rank without rows gets one row of the neutral value.
at::Tensor with_a_row(const at::Tensor& local, c10::IntArrayRef dims, const at::Scalar& neutral)
{
    auto shape = local.sizes().vec();
    bool changed = false;
    for (const auto dim : dims) {
        changed |= shape[dim] == 0;
        if (shape[dim] == 0) shape[dim] = 1;
    }
    return changed ? at::full(shape, neutral, local.options()) : local;
}

/// The layouts after reducing `dims`, complete on the axes that cut them.
AxisLayouts remaining_layouts(const RuleCall& call, const at::Tensor& tensor, c10::ArrayRef<std::int64_t> dims,
                              bool keepdim)
{
    return without_pending(reduced_layouts(layouts_of(call, tensor), dims, keepdim, Reduction::Sum));
}

/// Runs the operator on the own rows; if one of `dims` is cut, `merge` combines the ranks' results.
void in_two_steps(RuleCall& call, const std::vector<std::int64_t>& dims, const at::Scalar& neutral, const Merge& merge)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() == 0 || tensor.numel() == 0 || call.schema().returns().size() != 1) return gathered_rule(call);
    call.reduce({tensor});
    const auto spec = call.spec(remaining_layouts(call, tensor, dims, keeps_dims(call)));
    const auto cutting = axes_cutting(call, tensor, dims);
    call.set_local(0, with_a_row(local_of(tensor), dims, neutral));
    auto result = call.run_local()[0].toTensor();
    for (const auto axis : cutting) result = merge(parts_of_all(call, axis, result));
    call.push({wrap(result, spec)});
}

/// amax, amin; max and min over all entries. Exact, NaN included: the ranks' results are gathered and compared by the
/// operator itself.
template <bool kMax>
void extreme(RuleCall& call)
{
    if (call.num_args() > 1 && call.is_tensor(1)) return gathered_rule(call);
    const auto dims = dims_of(call, arg_named(call, "dim"));
    const auto type = call.tensor(0).scalar_type();
    in_two_steps(call, dims, kMax ? lowest_value(type) : highest_value(type),
                 [](const at::Tensor& parts) { return kMax ? at::amax(parts, {0}) : at::amin(parts, {0}); });
}

/// Values and positions in the whole of the extreme along one dimension; among equal values the first position, as in
/// the operator.
template <bool kMax>
std::pair<at::Tensor, at::Tensor> extreme_with_position(const RuleCall& call, const at::Tensor& tensor,
                                                        std::int64_t dim)
{
    const auto type = tensor.scalar_type();
    const auto& own = local_of(tensor);
    const auto local = with_a_row(own, {dim}, kMax ? lowest_value(type) : highest_value(type));
    auto [value, index] = kMax ? at::max(local, dim, true) : at::min(local, dim, true);
    for (const auto axis : axes_cutting(call, tensor, {dim})) {
        const auto& layout = call.layout(tensor, axis);
        if (own.size(dim) == 0)
            index = at::full_like(index, kNoIndex);
        else
            index = positions_in_whole(layout, call.coordinate(axis), local.device())
                        .index_select(0, index.reshape({-1}))
                        .view(index.sizes());
        merge_extremes(call, axis, kMax, value, index);
    }
    return {value, index};
}

/// max.dim, min.dim: (values, indices)
template <bool kMax>
void extreme_along(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (call.schema().arguments().size() != 3 || tensor.numel() == 0 || tensor.dim() == 0) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    const bool keepdim = call.arg(2).toBool();
    call.reduce({tensor});
    const auto spec = call.spec(remaining_layouts(call, tensor, {dim}, keepdim));
    if (!cuts_any(call, tensor, {dim})) {
        call.make_local();
        return call.run({spec});
    }
    auto [value, index] = extreme_with_position<kMax>(call, tensor, dim);
    if (!keepdim) {
        value = value.squeeze(dim);
        index = index.squeeze(dim);
    }
    call.finish({wrap(value, spec), wrap(index, spec)});
}

/// argmax(self, dim?, keepdim)
template <bool kMax>
void extreme_position(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.numel() == 0 || tensor.dim() == 0) return gathered_rule(call);
    const bool keepdim = call.arg(2).toBool();
    if (call.arg(1).isNone() && tensor.dim() > 1) {  // the extreme of all entries
        const auto line = tensor.reshape({-1});
        const auto position = kMax ? at::argmax(line, 0) : at::argmin(line, 0);
        return call.finish({keepdim ? position.view(std::vector<std::int64_t>(tensor.dim(), 1)) : position});
    }
    const auto dim = call.arg(1).isNone() ? 0 : from_front(call.arg(1).toInt(), tensor.dim());
    call.reduce({tensor});
    const auto spec = call.spec(remaining_layouts(call, tensor, {dim}, keepdim));
    if (!cuts_any(call, tensor, {dim})) {
        call.make_local();
        return call.run({spec});
    }
    const auto index = extreme_with_position<kMax>(call, tensor, dim).second;
    call.finish({wrap(keepdim ? index : index.squeeze(dim), spec)});
}

/// aminmax(self, *, dim?, keepdim) -> (min, max)
void both_extremes(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.numel() == 0 || tensor.dim() == 0) return gathered_rule(call);
    const auto dims = dims_of(call, 1);
    const bool keepdim = call.arg(2).toBool() && !call.arg(1).isNone();
    call.reduce({tensor});
    const auto spec = call.spec(remaining_layouts(call, tensor, dims, keepdim));
    const auto type = tensor.scalar_type();
    auto low = at::amin(with_a_row(local_of(tensor), dims, highest_value(type)), dims, keepdim);
    auto high = at::amax(with_a_row(local_of(tensor), dims, lowest_value(type)), dims, keepdim);
    for (const auto axis : axes_cutting(call, tensor, dims)) {
        low = at::amin(parts_of_all(call, axis, low), {0});
        high = at::amax(parts_of_all(call, axis, high), {0});
    }
    call.finish({wrap(low, spec), wrap(high, spec)});
}

void prod(RuleCall& call)
{
    in_two_steps(call, dims_of(call, arg_named(call, "dim")), 1,
                 [](const at::Tensor& parts) { return at::prod(parts, 0, false, parts.scalar_type()); });
}

void any(RuleCall& call)
{
    in_two_steps(call, dims_of(call, arg_named(call, "dim")), false,
                 [](const at::Tensor& parts) { return at::any(parts, 0); });
}

void all(RuleCall& call)
{
    in_two_steps(call, dims_of(call, arg_named(call, "dim")), true,
                 [](const at::Tensor& parts) { return at::all(parts, 0); });
}

void logsumexp(RuleCall& call)
{
    if (!at::isFloatingType(call.tensor(0).scalar_type())) return gathered_rule(call);
    in_two_steps(call, dims_of(call, 1), -std::numeric_limits<double>::infinity(),
                 [](const at::Tensor& parts) { return at::logsumexp(parts, {0}); });
}

/// linalg_vector_norm(self, ord, dim?, ...), norm(self, p?, dim?, ...): the p-norm of the ranks' p-norms; for p = 0 the
/// sum of their counts.
void vector_norm(RuleCall& call)
{
    const auto p = call.arg(1).isNone() ? 2.0 : call.arg(1).toScalar().toDouble();
    const at::Scalar neutral = p < 0 ? std::numeric_limits<double>::infinity() : 0.0;
    if (p < 0 && !at::isFloatingType(call.tensor(0).scalar_type())) return gathered_rule(call);
    in_two_steps(call, dims_of(call, arg_named(call, "dim")), neutral, [p](const at::Tensor& parts) {
        return p == 0 ? parts.sum(0) : at::linalg_vector_norm(parts, p, at::OptionalIntArrayRef(at::IntArrayRef{0}));
    });
}

/// nansum, count_nonzero: sums over all ranks, left pending.
void pending_count(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dims = dims_of(call, arg_named(call, "dim"));
    call.reduce({tensor});
    const auto spec = call.spec(reduced_layouts(layouts_of(call, tensor), dims, keeps_dims(call), Reduction::Sum));
    run_sum(call, spec, arg_named(call, "dtype"));
}

/// var, std, var_mean, std_mean (self, dim?, *, correction?, keepdim)
void variance(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    const auto dim_arg = arg_named(call, "dim"), correction_arg = arg_named(call, "correction");
    if (correction_arg < 0 || !at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0)
        return gathered_rule(call);
    const auto dims = dims_of(call, dim_arg);
    const bool keepdim = keeps_dims(call);
    call.reduce({tensor});
    const auto spec = call.spec(remaining_layouts(call, tensor, dims, keepdim));
    if (!cuts_any(call, tensor, dims)) {
        call.make_local();
        return call.run({spec});
    }
    double count = 1;
    for (const auto dim : dims) count *= static_cast<double>(tensor.size(dim));
    const auto correction = call.arg(correction_arg).isNone() ? 1.0 : call.arg(correction_arg).toScalar().toDouble();
    auto moments = moments_over(call, local_of(tensor), layouts_of(call, tensor), dims);
    // Division by zero gives infinity, or NaN for constant values.
    auto spread = moments.variance * (count / std::max(count - correction, 0.0));
    if (call.name().starts_with("aten::std")) spread.sqrt_();
    auto mean = moments.mean;
    if (!keepdim) {
        spread = spread.squeeze(dims);
        mean = mean.squeeze(dims);
    }
    torch::jit::Stack results{wrap(spread.to(tensor.scalar_type()), spec)};
    if (call.schema().returns().size() == 2) results.push_back(wrap(mean.to(tensor.scalar_type()), spec));
    call.finish(std::move(results));
}

/// histc(self, bins, min, max): the counts of all ranks over a common range, left pending.
void histc(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.numel() == 0) return gathered_rule(call);
    call.reduce({tensor});
    const auto all_dims = dims_or_all({}, tensor.dim());
    const auto spec = call.spec(reduced_layouts(layouts_of(call, tensor), all_dims, false, Reduction::Sum));
    if (call.arg(2).toScalar().toDouble() == call.arg(3).toScalar().toDouble()) {  // the range of the values is used
        const auto type = tensor.scalar_type();
        auto range = at::stack({with_a_row(local_of(tensor), all_dims, lowest_value(type)).amax(all_dims),
                                -with_a_row(local_of(tensor), all_dims, highest_value(type)).amin(all_dims)});
        for (const auto axis : axes_cutting(call, tensor, all_dims))
            range = at::amax(parts_of_all(call, axis, range), {0});
        call.arg(2) = at::Scalar(-range[1].item<double>());
        call.arg(3) = at::Scalar(range[0].item<double>());
    }
    call.make_local();
    call.run({spec});
}

const RuleRegistration statistics_rules[] = {
    {"reductions", {"aten::amax", "aten::max"}, extreme<true>},
    {"reductions", {"aten::amin", "aten::min"}, extreme<false>},
    {"reductions", {"aten::max.dim"}, extreme_along<true>},
    {"reductions", {"aten::min.dim"}, extreme_along<false>},
    {"reductions", {"aten::argmax"}, extreme_position<true>},
    {"reductions", {"aten::argmin"}, extreme_position<false>},
    {"reductions", {"aten::aminmax"}, both_extremes},
    {"reductions", {"aten::prod", "aten::prod.dim_int"}, prod},
    {"reductions", {"aten::any", "aten::any.dim", "aten::any.dims", "aten::_is_any_true"}, any},
    {"reductions", {"aten::all", "aten::all.dim", "aten::all.dims", "aten::_is_all_true"}, all},
    {"reductions", {"aten::logsumexp"}, logsumexp},
    {"reductions",
     {"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dtype",
      "aten::norm.ScalarOpt_dim_dtype"},
     vector_norm},
    {"reductions", {"aten::nansum", "aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, pending_count},
    {"reductions",
     {"aten::var.correction", "aten::std.correction", "aten::var_mean.correction", "aten::std_mean.correction"},
     variance},
    {"reductions", {"aten::histc"}, histc},
};

}  // namespace
}  // namespace meshard
