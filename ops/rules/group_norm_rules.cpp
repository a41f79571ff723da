// SPDX-License-Identifier: Apache-2.0
// Group normalisation with samples, channels or positions cut, also within a group.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

struct Groups {
    AxisLayouts axes;                       // layouts of the input (N, C, ...)
    std::vector<std::int64_t> positions;    // dimensions after the channels
    std::int64_t samples = 0;               // local number
    std::int64_t channels = 0, groups = 0;  // numbers of the whole
    double count = 0;                       // entries of a group in the whole
    AxisLayouts sample_axes;                // layouts of a tensor (N, ...) that is cut along samples only
};

Groups groups_of(const RuleCall& call, const at::Tensor& input, std::int64_t num_groups)
{
    Groups g;
    g.axes = layouts_of(call, input);
    for (std::int64_t dim = 2; dim < input.dim(); ++dim) g.positions.push_back(dim);
    g.samples = local_of(input).size(0);
    g.channels = input.size(1);
    g.groups = num_groups;
    g.count = static_cast<double>(input.numel() / input.size(0) / num_groups);
    auto others = g.positions;
    others.push_back(1);
    g.sample_axes = replaced(g.axes, others, {});
    return g;
}

/// (2, local N, local C) to (2, local N, C): two numbers for each channel, gathered if channels are cut.
at::Tensor of_all_channels(const RuleCall& call, const Groups& g, const at::Tensor& pair)
{
    const auto axes = map_dims(replaced(g.axes, g.positions, {}), [](std::int64_t dim) { return dim + 1; });
    return local_of(with_whole_dims(call, wrap(pair, call.spec(axes)), {2}));
}

/// (local N, C) to (local N, local C, 1, ...)
at::Tensor broadcast_to_input(const RuleCall& call, const Groups& g, const at::Tensor& by_channel,
                              std::int64_t num_dims)
{
    const auto local =
        local_of(with_layouts(call, wrap(by_channel, call.spec(g.sample_axes)), replaced(g.axes, g.positions, {})));
    auto shape = local.sizes().vec();
    shape.resize(num_dims, 1);
    return local.reshape(shape);
}

at::Tensor whole_vector(const RuleCall& call, const at::Tensor& vector, at::ScalarType type)
{
    return local_of(with_layouts(call, vector, AxisLayouts(call.num_axes()))).to(type);
}

/// native_group_norm(input, weight?, bias?, N, C, HxW, group, eps) -> output, mean, rstd (N, group)
void group_norm(RuleCall& call)
{
    const auto input = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2);
    const auto num_groups = call.arg(6).toInt();
    const auto eps = call.arg(7).toDouble();
    if (input.numel() == 0 || input.dim() < 2 || input.size(0) != call.arg(3).toInt() ||
        input.size(1) != call.arg(4).toInt())
        return gathered_rule(call);
    call.reduce(call.tensors());
    const auto g = groups_of(call, input, num_groups);
    const auto x = local_of(input);
    const auto type = sum_type(input.scalar_type());

    // Moments of each channel over all positions, then of each group over its channels.
    at::Tensor pair;
    if (g.positions.empty()) {
        pair = at::stack({x.to(at::kDouble), at::zeros_like(x, at::kDouble)});
    } else {
        const auto moments = moments_over(call, x, g.axes, g.positions);
        pair = at::stack({moments.mean, moments.variance}).reshape({2, x.size(0), x.size(1)});
    }
    pair = of_all_channels(call, g, pair).reshape({2, g.samples, g.groups, g.channels / g.groups});
    const auto mean = pair[0].mean(2, true);
    const auto variance = (pair[1] + (pair[0] - mean).square()).mean(2, true);
    const auto inverse = (variance + eps).rsqrt();  // (local N, groups, 1)

    const auto by_channel = [&](const at::Tensor& by_group) {
        return by_group.expand({g.samples, g.groups, g.channels / g.groups}).reshape({g.samples, g.channels});
    };
    auto scale = by_channel(inverse);
    if (weight.defined()) scale = scale * whole_vector(call, weight, at::kDouble);
    auto y = x.to(type) - broadcast_to_input(call, g, by_channel(mean), x.dim()).to(type);
    y.mul_(broadcast_to_input(call, g, scale, x.dim()).to(type));
    if (bias.defined())
        y.add_(broadcast_to_input(call, g, whole_vector(call, bias, type).expand({g.samples, g.channels}), x.dim()));
    const auto spec = call.spec(g.sample_axes);
    call.finish({wrap(y.to(input.scalar_type()), call.spec(g.axes)), wrap(mean.squeeze(2).to(type), spec),
                 wrap(inverse.squeeze(2).to(type), spec)});
}

/// native_group_norm_backward(grad_out, input, mean, rstd, weight?, N, C, HxW, group, output_mask)
///
/// With h = (x - mean) rstd: grad_input = rstd (w g - mean over the group of (w g) - h mean over the group of (w g h)).
/// The two sums of each channel are sent in one message for an axis that cuts positions, and one for an axis that cuts
/// channels.
void group_norm_backward(RuleCall& call)
{
    const auto input = call.tensor(1), weight = call.tensor(4);
    if (input.numel() == 0 || input.dim() < 2 || input.size(0) != call.arg(5).toInt() ||
        input.size(1) != call.arg(6).toInt())
        return gathered_rule(call);
    call.reduce(call.tensors());
    const auto g = groups_of(call, input, call.arg(8).toInt());
    const auto mask = call.arg(9).toBoolList();
    const auto type = sum_type(input.scalar_type());
    const auto x = local_of(input).to(type), gradient = local_of(with_layouts(call, call.tensor(0), g.axes)).to(type);
    const auto num_dims = x.dim();
    const auto by_channel = [&](const at::Tensor& by_group) {
        return by_group.unsqueeze(2)
            .expand({g.samples, g.groups, g.channels / g.groups})
            .reshape({g.samples, g.channels});
    };
    const auto mean = local_of(with_layouts(call, call.tensor(2), g.sample_axes)).to(type),
               inverse = local_of(with_layouts(call, call.tensor(3), g.sample_axes)).to(type);
    const auto h = (x - broadcast_to_input(call, g, by_channel(mean), num_dims)) *
                   broadcast_to_input(call, g, by_channel(inverse), num_dims);

    auto pair = at::stack({gradient, gradient * h});
    if (!g.positions.empty()) {
        auto dims = g.positions;
        for (auto& dim : dims) ++dim;
        pair = pair.sum(dims);
    }
    sum_over_axes(call, axes_cutting(call, input, g.positions), pair);
    pair = of_all_channels(call, g, pair);  // (2, local N, C)

    at::Tensor grad_input, grad_weight, grad_bias;
    if (mask[0]) {
        const auto w = weight.defined() ? whole_vector(call, weight, type) : at::ones({g.channels}, x.options());
        // (2, local N, groups).
        const auto means = (pair * w).reshape({2, g.samples, g.groups, g.channels / g.groups}).sum(3) / g.count;
        const auto own_w = broadcast_to_input(call, g, w.expand({g.samples, g.channels}), num_dims);
        auto local = gradient * own_w - broadcast_to_input(call, g, by_channel(means[0]), num_dims) -
                     h * broadcast_to_input(call, g, by_channel(means[1]), num_dims);
        local = local * broadcast_to_input(call, g, by_channel(inverse), num_dims);
        grad_input = wrap(local.to(input.scalar_type()), call.spec(g.axes));
    }
    // Sums over samples are pending if samples are cut.
    auto sums = g.sample_axes;
    for (auto& axis : sums) {
        if (axis.is_shard()) axis = {Partial(), nullptr, 1};
    }
    const auto vector_type = weight.defined() ? weight.scalar_type() : input.scalar_type();
    if (mask[1]) grad_weight = wrap(pair[1].sum(0).to(vector_type), call.spec(sums));
    if (mask[2]) grad_bias = wrap(pair[0].sum(0).to(vector_type), call.spec(sums));
    call.finish({grad_input, grad_weight, grad_bias});
}

const RuleRegistration group_norm_rules[] = {
    {"normalisation", {"aten::native_group_norm"}, group_norm},
    {"normalisation", {"aten::native_group_norm_backward"}, group_norm_backward},
};

}  // namespace
}  // namespace meshard
