// SPDX-License-Identifier: Apache-2.0
// Softmax and log-softmax over any dimension, which may be cut.
#include "ops/rules/rank_parts.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>

#include <limits>

namespace meshard {
namespace {

enum class Softmax { Plain, Log, Safe };

/// Over a cut dimension every rank sends its maximum and its sum of exponentials relative to that, in one message for
/// each axis; the sums are scaled to the common maximum and added.
template <Softmax kKind>
void softmax(RuleCall& call)
{
    const auto tensor = call.tensor(0);
    if (tensor.dim() == 0 || tensor.numel() == 0 || !tensor.is_floating_point()) return gathered_rule(call);
    const auto dim = from_front(call.arg(1).toInt(), tensor.dim());
    call.reduce({tensor});
    const auto spec = spec_of(tensor);
    const auto cutting = axes_cutting(call, tensor, {dim});
    if (cutting.empty()) {
        call.make_local();
        return call.run({spec});
    }
    auto result_type = tensor.scalar_type();
    if constexpr (kKind == Softmax::Safe) {
        if (!call.arg(2).isNone()) result_type = call.arg(2).toScalarType();
    } else if (call.arg(2).toBool()) {
        result_type = at::kFloat;
    }
    const auto x = local_of(tensor).to(sum_type(result_type));
    const auto lowest = -std::numeric_limits<double>::infinity();
    auto shape = x.sizes().vec();
    shape[dim] = 1;
    auto top = x.size(dim) > 0 ? x.amax({dim}, true) : at::full(shape, lowest, x.options());
    // A rank whose part of a line is -inf everywhere adds nothing to the other ranks' sums; if all parts are so, the
    // result is NaN.
    auto sum = at::exp(x - top.masked_fill(top.eq(lowest), 0)).sum({dim}, true);
    for (const auto axis : cutting) {
        const auto parts = parts_of_all(call, axis, at::stack({top, sum}));  // (ranks, 2, ...)
        const auto tops = parts.select(1, 0), sums = parts.select(1, 1);
        top = tops.amax({0});
        sum = (sums * at::exp(tops - top.masked_fill(top.eq(lowest), 0))).sum(0);
    }
    at::Tensor y;
    if constexpr (kKind == Softmax::Log) {
        y = x - top - sum.log();
    } else {
        y = at::exp(x - top).div_(sum);
        if constexpr (kKind == Softmax::Safe) y.masked_fill_(top.eq(lowest), 0);
    }
    call.finish({wrap(y.to(result_type), spec)});
}

/// _softmax_backward_data(grad_output, output, dim, input_dtype): one sum for each line, over all ranks if the line is
/// cut.
template <Softmax kKind>
void softmax_backward(RuleCall& call)
{
    const auto output = call.tensor(1);
    if (output.dim() == 0 || output.numel() == 0) return gathered_rule(call);
    const auto dim = from_front(call.arg(2).toInt(), output.dim());
    const auto type = call.arg(3).toScalarType();
    call.reduce({call.tensor(0), output});
    auto axes = layouts_of(call, output);
    const auto gradient = with_layouts(call, call.tensor(0), axes);
    const auto cutting = axes_cutting(call, output, {dim});
    if (cutting.empty()) {
        call.set_local(0, at::Tensor(local_of(gradient)));
        call.make_local();
        return call.run({call.spec(axes)});
    }
    const auto wide = sum_type(output.scalar_type());
    const auto g = local_of(gradient).to(wide), y = local_of(output).to(wide);
    auto sum = (kKind == Softmax::Log ? g : g * y).sum({dim}, true);
    sum_over_axes(call, cutting, sum);
    const auto result = kKind == Softmax::Log ? g - y.exp() * sum : y * (g - sum);
    call.finish({wrap(result.to(type), call.spec(axes))});
}

// --- direct kernels along dimensions that are whole on every rank ----------------------------------------------------

bool has_whole_lines(const at::Tensor& tensor, std::int64_t dim)
{
    if (!is_ready(tensor) || tensor.dim() == 0 || tensor.numel() == 0) return false;
    for (const auto& axis : spec_of(tensor)->axes) {
        if (axis.is_partial() || (axis.is_shard() && axis.placement.dim == from_front(dim, tensor.dim()))) return false;
    }
    return true;
}

template <class Op>
std::optional<at::Tensor> direct_softmax(const at::Tensor& x, std::int64_t dim, bool half_to_float)
{
    if (!has_whole_lines(x, dim)) return std::nullopt;
    return fresh(Op::call(local_of(x), dim, half_to_float), spec_of(x));
}

template <class Op>
std::optional<at::Tensor> direct_softmax_backward(const at::Tensor& gradient, const at::Tensor& output,
                                                  std::int64_t dim, at::ScalarType type)
{
    if (!has_whole_lines(output, dim) || !is_ready(gradient) || !(*spec_of(gradient) == *spec_of(output)))
        return std::nullopt;
    return fresh(Op::call(local_of(gradient), local_of(output), dim, type), spec_of(output));
}

namespace op = at::_ops;
const DirectRegistration softmax_kernels[] = {
    direct_kernel<op::_softmax, &direct_softmax<op::_softmax>>(softmax<Softmax::Plain>),
    direct_kernel<op::_log_softmax, &direct_softmax<op::_log_softmax>>(softmax<Softmax::Log>),
    direct_kernel<op::_softmax_backward_data, &direct_softmax_backward<op::_softmax_backward_data>>(
        softmax_backward<Softmax::Plain>),
    direct_kernel<op::_log_softmax_backward_data, &direct_softmax_backward<op::_log_softmax_backward_data>>(
        softmax_backward<Softmax::Log>),
};

const RuleRegistration softmax_rules[] = {
    {"softmax", {"aten::_softmax"}, softmax<Softmax::Plain>},
    {"softmax", {"aten::_log_softmax"}, softmax<Softmax::Log>},
    {"softmax", {"aten::_safe_softmax"}, softmax<Softmax::Safe>},
    {"softmax", {"aten::_softmax_backward_data"}, softmax_backward<Softmax::Plain>},
    {"softmax", {"aten::_log_softmax_backward_data"}, softmax_backward<Softmax::Log>},
};

}  // namespace
}  // namespace meshard
