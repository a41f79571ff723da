// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over any number of last dimensions, which may be cut.
#include "ops/rules/rank_parts.h"
#include "partition/lists.h"
#include "sharding/tensor/direct_kernel.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// The normalised dimensions, and the layouts of input, statistics and weights.
struct Lines {
    std::int64_t outer = 0;          // number of dimensions before the normalised ones
    std::vector<std::int64_t> dims;  // the normalised dimensions
    AxisLayouts axes;                // layouts of the input
    AxisLayouts line_axes;           // layouts of one number for each line
    AxisLayouts weight_axes;         // layouts of weight and bias
    double count = 1;                // entries of a line in the whole
};

Lines lines_of(const RuleCall& call, const at::Tensor& input, std::int64_t num_normalized)
{
    Lines lines;
    lines.outer = input.dim() - num_normalized;
    std::vector<std::int64_t> outer_dims;
    for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
        (dim < lines.outer ? outer_dims : lines.dims).push_back(dim);
        if (dim >= lines.outer) lines.count *= static_cast<double>(input.size(dim));
    }
    lines.axes = layouts_of(call, input);
    lines.line_axes = replaced(lines.axes, lines.dims, {});
    lines.weight_axes =
        map_dims(replaced(lines.axes, outer_dims, {}), [&](std::int64_t dim) { return dim - lines.outer; });
    return lines;
}

/// Returns whether lines are whole on every rank, the usual case, in which the operator itself is sufficient.
bool has_whole_lines(const RuleCall& call, const at::Tensor& input, std::int64_t num_normalized)
{
    for (const auto axis : call.axes()) {
        const auto& layout = call.layout(input, axis);
        if (layout.is_shard() && layout.placement.dim >= input.dim() - num_normalized) return false;
    }
    return true;
}

/// Returns whether at most rows are cut, and `weights` are whole on every rank: the usual case, without messages. It
/// allocates no lists, since the operator itself may take only a microsecond.
bool is_cut_by_rows_only(const RuleCall& call, const at::Tensor& input, std::int64_t num_normalized,
                         std::initializer_list<std::int64_t> weights)
{
    if (!is_sharded(input) || spec_of(input)->has_partial() || !has_whole_lines(call, input, num_normalized))
        return false;
    for (const auto i : weights) {
        if (!call.arg(i).isTensor()) continue;
        const auto& weight = call.arg(i).toTensor();
        if (is_sharded(weight) && (spec_of(weight)->has_shard() || spec_of(weight)->has_partial())) return false;
    }
    return true;
}

void make_whole(RuleCall& call, std::initializer_list<std::int64_t> args)
{
    for (const auto i : args) {
        if (call.tensor(i).defined())
            call.set_local(i, at::Tensor(local_of(with_layouts(call, call.tensor(i), AxisLayouts(call.num_axes())))));
    }
}

at::Tensor part_in(const RuleCall& call, const at::Tensor& tensor, const AxisLayouts& axes, at::ScalarType type)
{
    return local_of(with_layouts(call, tensor, axes)).to(type);
}

/// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> output, mean, rstd: row by row if lines are
/// whole; if they are cut, with statistics merged over the ranks.
void layer_norm(RuleCall& call)
{
    const auto input = call.tensor(0);
    if (input.numel() == 0) return gathered_rule(call);
    const auto num_normalized = std::ssize(call.arg(1).toIntList());
    if (is_cut_by_rows_only(call, input, num_normalized, {2, 3})) {
        const auto spec = spec_of(input);
        call.make_local();
        return call.run({spec});
    }
    const auto weight = call.tensor(2), bias = call.tensor(3);
    call.reduce(call.tensors());
    if (has_whole_lines(call, input, num_normalized)) {
        const auto spec = call.spec(layouts_of(call, input));
        make_whole(call, {2, 3});
        call.make_local();
        return call.run({spec});
    }
    const auto lines = lines_of(call, input, num_normalized);
    const auto type = sum_type(input.scalar_type());
    const auto moments = moments_over(call, local_of(input), lines.axes, lines.dims);
    const auto mean = moments.mean.to(type), inverse = (moments.variance + call.arg(4).toDouble()).rsqrt().to(type);
    auto y = (local_of(input).to(type) - mean).mul_(inverse);
    if (weight.defined()) y.mul_(part_in(call, weight, lines.weight_axes, type));
    if (bias.defined()) y.add_(part_in(call, bias, lines.weight_axes, type));
    const auto line_spec = call.spec(lines.line_axes);
    call.finish(
        {wrap(y.to(input.scalar_type()), call.spec(lines.axes)), wrap(mean, line_spec), wrap(inverse, line_spec)});
}

/// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, output_mask)
///   -> grad_input with the input's layout; grad_weight and grad_bias are sums over rows, pending if rows are cut.
///
/// If lines are cut, with h = (x - mean) rstd: grad_input = rstd (w g - mean(w g) - h mean(w g h)), both means in one
/// message.
void layer_norm_backward(RuleCall& call)
{
    const auto input = call.tensor(1), weight = call.tensor(5), bias = call.tensor(6);
    if (input.numel() == 0) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto num_normalized = std::ssize(call.arg(2).toIntList());
    const auto lines = lines_of(call, input, num_normalized);
    auto sums = lines.weight_axes;
    for (std::size_t axis = 0; axis < sums.size(); ++axis) {
        if (lines.axes[axis].is_shard() && !sums[axis].is_shard()) sums[axis] = {Partial(), nullptr, 1};
    }
    const auto weight_spec = call.spec(sums);
    if (has_whole_lines(call, input, num_normalized)) {
        call.set_local(0, at::Tensor(local_of(with_layouts(call, call.tensor(0), lines.axes))));
        for (const auto i : {3, 4})
            call.set_local(i, at::Tensor(local_of(with_layouts(call, call.tensor(i), lines.line_axes))));
        make_whole(call, {5, 6});
        call.make_local();
        return call.run({call.spec(lines.axes), weight_spec, weight_spec});
    }
    const auto mask = call.arg(7).toBoolList();
    const auto type = sum_type(input.scalar_type());
    const auto g = part_in(call, call.tensor(0), lines.axes, type);
    const auto inverse = part_in(call, call.tensor(4), lines.line_axes, type);
    const auto h = (local_of(input).to(type) - part_in(call, call.tensor(3), lines.line_axes, type)) * inverse;
    at::Tensor grad_input, grad_weight, grad_bias;
    if (mask[0]) {
        const auto wg = weight.defined() ? g * part_in(call, weight, lines.weight_axes, type) : g;
        auto means = at::stack({wg.sum(lines.dims, true), (wg * h).sum(lines.dims, true)}) / lines.count;
        sum_over_axes(call, axes_cutting(call, input, lines.dims), means);
        grad_input = wrap(((wg - means[0] - h * means[1]) * inverse).to(input.scalar_type()), call.spec(lines.axes));
    }
    auto outer = numbers_from<std::int64_t>(0, lines.outer);
    const auto over_rows = [&](const at::Tensor& x) { return outer.empty() ? x : x.sum(outer); };
    if (mask[1] && weight.defined()) grad_weight = wrap(over_rows(g * h).to(weight.scalar_type()), weight_spec);
    if (mask[2] && bias.defined()) grad_bias = wrap(over_rows(g).to(bias.scalar_type()), weight_spec);
    call.finish({grad_input, grad_weight, grad_bias});
}

// --- direct kernels: lines whole on every rank, weights plain --------------------------------------------------------

bool lies_directly_by_rows(const at::Tensor& input, std::int64_t num_normalized,
                           const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias)
{
    if (!is_ready(input) || input.numel() == 0 || (weight && is_sharded(*weight)) || (bias && is_sharded(*bias)))
        return false;
    for (const auto& axis : spec_of(input)->axes) {
        if (axis.is_partial() || (axis.is_shard() && axis.placement.dim >= input.dim() - num_normalized)) return false;
    }
    return true;
}

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

std::optional<ThreeTensors> direct_layer_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                                              const std::optional<at::Tensor>& weight,
                                              const std::optional<at::Tensor>& bias, double eps)
{
    if (!lies_directly_by_rows(input, std::ssize(normalized_shape), weight, bias)) return std::nullopt;
    const auto& spec = spec_of(input);
    auto [y, mean, inverse] = at::native_layer_norm_symint(local_of(input), normalized_shape, weight, bias, eps);
    return ThreeTensors{fresh(std::move(y), spec), fresh(std::move(mean), spec), fresh(std::move(inverse), spec)};
}

std::optional<ThreeTensors> direct_layer_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                       c10::SymIntArrayRef normalized_shape, const at::Tensor& mean,
                                                       const at::Tensor& inverse,
                                                       const std::optional<at::Tensor>& weight,
                                                       const std::optional<at::Tensor>& bias, std::array<bool, 3> mask)
{
    if (!lies_directly_by_rows(input, std::ssize(normalized_shape), weight, bias)) return std::nullopt;
    const auto& spec = spec_of(input);
    for (const auto* tensor : {&gradient, &mean, &inverse}) {
        if (!is_ready(*tensor) || !(*spec_of(*tensor) == *spec)) return std::nullopt;
    }
    auto [x, w, b] = at::native_layer_norm_backward_symint(local_of(gradient), local_of(input), normalized_shape,
                                                           local_of(mean), local_of(inverse), weight, bias, mask);
    const auto pending = w.defined() || b.defined() ? pending_sum(spec) : nullptr;
    return ThreeTensors{x.defined() ? fresh(std::move(x), spec) : x, w.defined() ? fresh(std::move(w), pending) : w,
                        b.defined() ? fresh(std::move(b), pending) : b};
}

const DirectRegistration normalization_kernels[] = {
    direct_kernel<at::_ops::native_layer_norm, &direct_layer_norm>(layer_norm),
    direct_kernel<at::_ops::native_layer_norm_backward, &direct_layer_norm_backward>(layer_norm_backward),
};

const RuleRegistration normalization_rules[] = {
    {"normalisation", {"aten::native_layer_norm"}, layer_norm},
    {"normalisation", {"aten::native_layer_norm_backward"}, layer_norm_backward},
};

}  // namespace
}  // namespace meshard
