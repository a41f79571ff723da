// SPDX-License-Identifier: Apache-2.0
// Batch normalisation with statistics over the rows of all ranks. Instance norm uses these operators too; its samples
// are then channels.
#include "ops/rules/rank_parts.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// An input (N, C, ...), its layouts and the shape of its channels.
struct Channels {
    AxisLayouts axes;                   // layouts of the input
    AxisLayouts vector_axes;            // layouts of a vector with one entry for each channel
    std::vector<std::int64_t> dims;     // all dimensions except the channels
    std::vector<std::int64_t> cutting;  // axes that cut one of `dims`
    std::vector<std::int64_t> shape;    // (1, local channels, 1, ...)
    double count = 0;                   // entries of a channel in the whole
};

Channels channels_of(const RuleCall& call, const at::Tensor& input)
{
    Channels channels;
    channels.axes = layouts_of(call, input);
    for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
        if (dim != 1) channels.dims.push_back(dim);
    }
    channels.cutting = axes_cutting(call, input, channels.dims);
    channels.vector_axes = map_dims(replaced(channels.axes, channels.dims, {}), [](std::int64_t) { return 0; });
    channels.shape.assign(input.dim(), 1);
    channels.shape[1] = local_of(input).size(1);
    channels.count = static_cast<double>(input.numel() / input.size(1));
    return channels;
}

/// This rank's channels of a vector, in a shape that broadcasts to the input.
at::Tensor own_entries(const RuleCall& call, const Channels& channels, const at::Tensor& vector, at::ScalarType type)
{
    return local_of(with_layouts(call, vector, channels.vector_axes)).to(type).view(channels.shape);
}

/// Updates running = (1 - momentum) running + momentum value, equally on every rank.
void update_running(const RuleCall& call, const Channels& channels, const at::Tensor& running, const at::Tensor& value,
                    double momentum)
{
    if (!running.defined()) return;
    const auto whole =
        with_layouts(call, wrap(value.reshape({-1}), call.spec(channels.vector_axes)), AxisLayouts(call.num_axes()));
    const auto target = local_of(running);
    target.mul_(1 - momentum).add_(local_of(whole).to(target.scalar_type()), momentum);
}

bool is_whole(const at::Tensor& tensor)
{
    return !is_sharded(tensor) || spec_of(tensor)->is_replicate();
}

/// op(input, weight?, bias?, running_mean?, running_var?, training, momentum, eps) -> output, save_mean, save_invstd [,
/// reserve]; the form without running statistics lacks these arguments.
void batch_norm(RuleCall& call)
{
    const bool has_running = call.num_args() == 8;
    const auto input = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2);
    const auto running_mean = has_running ? call.tensor(3) : at::Tensor(),
               running_var = has_running ? call.tensor(4) : at::Tensor();
    const bool training = call.arg(has_running ? 5 : 3).toBool();
    const auto momentum = call.arg(has_running ? 6 : 4).toDouble(), eps = call.arg(has_running ? 7 : 5).toDouble();
    if (input.numel() == 0 || input.dim() < 2) return gathered_rule(call);
    if (!is_whole(running_mean) || !is_whole(running_var))
        call.refuse("its running statistics are cut", "Leave the buffers of the module plain or replicated");
    call.reduce(call.tensors());
    const auto channels = channels_of(call, input);
    const auto type = sum_type(input.scalar_type());
    const auto x = local_of(input);

    at::Tensor mean, inverse, save_mean, save_inverse;  // (1, C, 1, ...)
    if (training) {
        const auto moments = moments_over(call, x, channels.axes, channels.dims);
        update_running(call, channels, running_mean, moments.mean, momentum);
        update_running(call, channels, running_var, moments.variance * (channels.count / (channels.count - 1)),
                       momentum);
        mean = moments.mean.to(type);
        inverse = (moments.variance + eps).rsqrt().to(type);
        const auto spec = call.spec(channels.vector_axes);
        save_mean = wrap(mean.reshape({-1}), spec);
        save_inverse = wrap(inverse.reshape({-1}), spec);
    } else {
        mean = own_entries(call, channels, running_mean, type);
        inverse = (own_entries(call, channels, running_var, at::kDouble) + eps).rsqrt().to(type);
        save_mean = wrap(at::empty({0}, x.options().dtype(type)), call.replicated());
        save_inverse = wrap(at::empty({0}, x.options().dtype(type)), call.replicated());
    }
    auto y = x.to(type) - mean;
    y.mul_(weight.defined() ? inverse * own_entries(call, channels, weight, type) : inverse);
    if (bias.defined()) y.add_(own_entries(call, channels, bias, type));
    torch::jit::Stack results{wrap(y.to(input.scalar_type()), call.spec(channels.axes)), save_mean, save_inverse};
    if (call.schema().returns().size() == 4)
        results.push_back(wrap(at::empty({0}, x.options().dtype(at::kByte)), call.replicated()));
    call.finish(std::move(results));
}

struct BackwardArguments {
    at::Tensor gradient, input, weight, mean, inverse;  // mean, inverse: mean and inverse deviation that forward used
    bool training = true;
    std::array<bool, 3> wanted{true, true, true};
};

/// With c = x - mean, sums over the rows of all ranks in one message:
///     grad_input = (g - sum(g) / n - c inverse^2 sum(g c) / n) inverse weight
///     grad_weight = sum(g c) inverse, grad_bias = sum(g)
void backward(RuleCall& call, const BackwardArguments& arguments)
{
    const auto& input = arguments.input;
    const auto channels = channels_of(call, input);
    const auto type = sum_type(input.scalar_type());
    const auto g = local_of(with_layouts(call, arguments.gradient, channels.axes)).to(type);
    const auto mean = own_entries(call, channels, arguments.mean, type),
               inverse = own_entries(call, channels, arguments.inverse, type);
    const auto centered = local_of(input).to(type) - mean;

    auto sums = at::stack({g.sum(channels.dims, true), (g * centered).sum(channels.dims, true)});
    sum_over_axes(call, channels.cutting, sums);
    at::Tensor grad_input, grad_weight, grad_bias;
    if (arguments.wanted[0]) {
        const auto scale =
            arguments.weight.defined() ? inverse * own_entries(call, channels, arguments.weight, type) : inverse;
        auto local = g;
        if (arguments.training)
            local = g - sums[0] / channels.count - centered * (inverse.square() * sums[1] / channels.count);
        grad_input = wrap((local * scale).to(input.scalar_type()), call.spec(channels.axes));
    }
    const auto vector_type = arguments.weight.defined() ? arguments.weight.scalar_type() : input.scalar_type();
    const auto vector_spec = call.spec(channels.vector_axes);
    if (arguments.wanted[1]) grad_weight = wrap((sums[1] * inverse).reshape({-1}).to(vector_type), vector_spec);
    if (arguments.wanted[2]) grad_bias = wrap(sums[0].reshape({-1}).to(vector_type), vector_spec);
    call.finish({grad_input, grad_weight, grad_bias});
}

/// native_batch_norm_backward(grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train,
/// eps, output_mask)
void batch_norm_backward(RuleCall& call)
{
    BackwardArguments arguments{
        call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(5), call.tensor(6), call.arg(7).toBool(), {}};
    if (arguments.input.numel() == 0) return gathered_rule(call);
    call.reduce(call.tensors());
    const auto mask = call.arg(9).toBoolList();
    for (std::size_t i = 0; i < 3; ++i) arguments.wanted[i] = mask[i];
    if (!arguments.training) {
        arguments.mean = call.tensor(3);
        const auto variance = is_sharded(call.tensor(4)) ? call.tensor(4) : wrap(call.tensor(4), call.replicated());
        arguments.inverse =
            wrap((local_of(variance).to(at::kDouble) + call.arg(8).toDouble()).rsqrt(), spec_of(variance));
    }
    backward(call, arguments);
}

/// cudnn_batch_norm_backward(input, grad_output, weight, running_mean?, running_var?, save_mean?, save_invstd?, eps,
/// reserve)
void cudnn_batch_norm_backward(RuleCall& call)
{
    if (call.tensor(0).numel() == 0) return gathered_rule(call);
    call.reduce(call.tensors());
    backward(
        call,
        {call.tensor(1), call.tensor(0), call.tensor(2), call.tensor(5), call.tensor(6), true, {true, true, true}});
}

const RuleRegistration batch_norm_rules[] = {
    {"normalisation",
     {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit.no_stats",
      "aten::cudnn_batch_norm"},
     batch_norm},
    {"normalisation", {"aten::native_batch_norm_backward"}, batch_norm_backward},
    {"normalisation", {"aten::cudnn_batch_norm_backward"}, cudnn_batch_norm_backward},
};

}  // namespace
}  // namespace meshard
