// SPDX-License-Identifier: Apache-2.0
// Maxima and averages of sliding windows in two and three dimensions; poolings in one dimension use those of two. Along
// a cut dimension every rank receives the inputs that its own windows read.
#include "ops/grids/grid_cuts.h"
#include "ops/grids/plane_indices.h"
#include "ops/rules/placement_algebra.h"
#include "sharding/ranks/type_limits.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

namespace meshard {
namespace {

/// This rank's share of a spatial dimension of a pooling.
struct PoolDim {
    std::int64_t dim = 0;
    SlidingWindow window;
    Range inputs, outputs;                  ///< input range after the exchange, and range of the computed outputs
    std::int64_t before = 0, after = 0;     ///< how far windows reach beyond the input
    std::optional<RangeExchange> exchange;  ///< if the dimension is cut
};

struct Pooling {
    std::vector<PoolDim> dims;
    AxisLayouts input_layouts, output_layouts;

    /// Returns whether no window reads another rank's inputs: then the operator runs locally.
    bool is_local() const
    {
        return std::ranges::none_of(dims, [](const PoolDim& dim) { return dim.exchange.has_value(); });
    }

    std::vector<std::int64_t> numbers(std::int64_t SlidingWindow::* field) const
    {
        std::vector<std::int64_t> result;
        for (const auto& dim : dims) result.push_back(dim.window.*field);
        return result;
    }
    std::vector<std::int64_t> output_shape(const at::Tensor& local) const
    {
        auto shape = local.sizes().vec();
        for (const auto& dim : dims) shape[dim.dim] = dim.outputs.size();
        return shape;
    }
    std::vector<Range> box() const
    {
        std::vector<Range> result;
        for (const auto& dim : dims) result.push_back(dim.inputs);
        return result;
    }
    at::Tensor give_back(at::Tensor gradient) const
    {
        for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
            if (dim->exchange) gradient = dim->exchange->give_back(gradient);
        }
        return gradient;
    }
};

/// Returns whether a window is completely in the padding: its index is then defined by the operator only.
bool has_empty_window(const SlidingWindow& window)
{
    if (window.padding == 0 || window.dilation == 1) return false;
    for (std::int64_t o = 0; o < window.out; ++o) {
        const auto start = o * window.stride - window.padding;
        const auto first = start >= 0 ? start : start + ceil_div(-start, window.dilation) * window.dilation;
        if (first >= window.in || first > start + window.reach()) return true;
    }
    return false;
}

/// Returns nothing if the layout, or the arguments, are left to the general rule.
std::optional<Pooling> plan(const RuleCall& call, const at::Tensor& input, std::int64_t n,
                            const std::vector<std::int64_t>& kernel, std::vector<std::int64_t> stride,
                            const std::vector<std::int64_t>& padding, const std::vector<std::int64_t>& dilation,
                            bool ceil_mode)
{
    if (stride.empty()) stride = kernel;
    const auto num = static_cast<std::size_t>(n);
    if (kernel.size() != num || stride.size() != num || padding.size() != num || dilation.size() != num)
        return std::nullopt;
    const auto first = input.dim() - n;
    if (first < 1 || first > 2 || input.numel() == 0) return std::nullopt;

    Pooling pooling;
    pooling.input_layouts = without_pending(layouts_of(call, input));
    const auto axes = cut_axes(pooling.input_layouts, input.dim(), first);
    if (!axes) return std::nullopt;
    pooling.output_layouts = pooling.input_layouts;
    for (std::int64_t i = 0; i < n; ++i) {
        PoolDim dim;
        dim.dim = first + i;
        auto& window = dim.window;
        window = {input.size(dim.dim), 0, kernel[i], stride[i], padding[i], dilation[i]};
        if (window.kernel < 1 || window.stride < 1 || window.dilation < 1 || window.padding < 0 ||
            window.padding > (window.reach() + 1) / 2) {
            return std::nullopt;
        }
        window.out =
            floor_div(window.in + 2 * window.padding - window.reach() - 1 + (ceil_mode ? window.stride - 1 : 0),
                      window.stride) +
            1;
        if (ceil_mode && (window.out - 1) * window.stride >= window.in + window.padding) --window.out;
        if (window.out < 1 || has_empty_window(window)) return std::nullopt;

        const auto axis = (*axes)[dim.dim];
        if (is_whole(call, axis)) {
            dim.inputs = {0, window.in};
            dim.outputs = {0, window.out};
            if (axis >= 0)
                pooling.output_layouts[axis] = cut_layout(pooling.input_layouts[axis], dim.dim, {window.out});
        } else {
            const auto& in = pooling.input_layouts[axis];
            const auto extents = window.out_extents(*in.extents);
            const auto outputs = ranges_of(extents);
            std::vector<Range> needed;
            for (const auto& range : outputs) needed.push_back(clip(window.window(range), window.in).inside);
            dim.exchange.emplace(call.device_mesh()->group(axis), in, std::move(needed));
            dim.inputs = dim.exchange->needed();
            dim.outputs = outputs[call.coordinate(axis)];
            pooling.output_layouts[axis] = cut_layout(in, dim.dim, extents);
        }
        const auto read = window.window(dim.outputs);
        dim.before = std::max<std::int64_t>(0, -read.begin);
        dim.after = std::max<std::int64_t>(0, read.end - window.in);
        pooling.dims.push_back(std::move(dim));
    }
    return pooling;
}

/// The inputs that this rank's windows read; beyond the input's end `fill`, with `in_front` also before its first
/// entry.
at::Tensor borrow(const Pooling& pooling, at::Tensor local, const at::Scalar& fill, bool in_front)
{
    for (const auto& dim : pooling.dims) {
        const auto before = in_front ? dim.before : 0;
        if (dim.exchange) {
            local = dim.exchange->borrow(local, before, dim.after, fill);
        } else if (before > 0 || dim.after > 0) {
            std::vector<std::int64_t> pad(2 * (local.dim() - dim.dim), 0);
            pad[pad.size() - 2] = before;
            pad[pad.size() - 1] = dim.after;
            local = at::constant_pad_nd(local, pad, fill);
        }
    }
    return local;
}

std::optional<Pooling> plan_max(const RuleCall& call, const at::Tensor& input, std::int64_t first_arg, std::int64_t n)
{
    return plan(call, input, n, one_a_dim(call.arg(first_arg), n), one_a_dim(call.arg(first_arg + 1), n),
                one_a_dim(call.arg(first_arg + 2), n), one_a_dim(call.arg(first_arg + 3), n),
                call.arg(first_arg + 4).toBool());
}

/// max_poolNd_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode) -> output, indices into the whole's
/// plane.
///
/// Windows that begin before the input use the operator's own padding, which never returns an index of the padding;
/// those that end beyond it read appended entries with the lowest value.
template <int N>
void max_pool(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto pooling = plan_max(call, input, 1, N);
    if (!pooling) return gathered_rule(call);

    call.reduce({input});
    const auto& local = local_of(input);
    if (pooling->is_local() && local.numel() > 0) {
        const auto spec = call.spec(pooling->output_layouts);
        call.make_local();
        return call.run({spec});
    }
    const auto piece = borrow(*pooling, local, lowest_value(input.scalar_type()), false);
    const auto shape = pooling->output_shape(local);
    at::Tensor values, indices;
    if (c10::multiply_integers(shape) == 0) {
        values = at::empty(shape, local.options());
        indices = at::empty(shape, local.options().dtype(at::kLong));
    } else {
        std::vector<std::int64_t> padding, whole, padded;
        for (const auto& dim : pooling->dims) {
            padding.push_back(dim.before > 0 ? dim.window.padding : 0);
            whole.push_back(dim.window.in);
            padded.push_back(piece.size(dim.dim));
        }
        const auto kernel = pooling->numbers(&SlidingWindow::kernel), stride = pooling->numbers(&SlidingWindow::stride),
                   dilation = pooling->numbers(&SlidingWindow::dilation);
        if constexpr (N == 2)
            std::tie(values, indices) = at::max_pool2d_with_indices(piece, kernel, stride, padding, dilation);
        else
            std::tie(values, indices) = at::max_pool3d_with_indices(piece, kernel, stride, padding, dilation);
        // With the operator's own padding the local outputs start with the first output of the whole.
        for (const auto& dim : pooling->dims) {
            const auto begin = dim.before > 0 ? dim.outputs.begin : 0;
            values = values.narrow(dim.dim, begin, dim.outputs.size());
            indices = indices.narrow(dim.dim, begin, dim.outputs.size());
        }
        const bool from_start =
            std::ranges::all_of(pooling->dims, [](const PoolDim& dim) { return dim.inputs.begin == 0; });
        if (!from_start || padded != whole) indices = indices_in_whole(indices, pooling->box(), padded, whole);
    }
    const auto spec = call.spec(pooling->output_layouts);
    call.finish({wrap(values, spec), wrap(indices, spec)});
}

/// max_poolNd_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
template <int N>
void max_pool_backward(RuleCall& call)
{
    const auto gradient = call.tensor(0), input = call.tensor(1), indices = call.tensor(7);
    const auto pooling = plan_max(call, input, 2, N);
    if (!pooling) return gathered_rule(call);

    call.reduce(call.tensors());
    const auto local_gradient = local_of(with_layouts(call, gradient, pooling->output_layouts));
    const auto local_indices = local_of(with_layouts(call, indices, pooling->output_layouts));
    if (pooling->is_local() && local_gradient.numel() > 0) {
        call.arg(0) = local_gradient;
        call.arg(1) = local_of(input);
        call.arg(7) = local_indices;
        return call.run({call.spec(pooling->input_layouts)});
    }
    const auto of_box =
        scatter_to_box(local_gradient, local_indices, pooling->box(), pooling->numbers(&SlidingWindow::in));
    call.finish({wrap(pooling->give_back(of_box), call.spec(pooling->input_layouts))});
}

/// The number by which each window's sum is divided: one number if all are equal, else a tensor to broadcast.
struct Divisor {
    std::int64_t number = 1;
    at::Tensor tensor;
};

Divisor divisor_of(const Pooling& pooling, bool count_include_pad, const c10::IValue& override,
                   const at::TensorOptions& options)
{
    if (!override.isNone()) return {override.toInt(), {}};
    Divisor divisor;
    bool uniform = true;
    std::vector<std::vector<std::int64_t>> counts;
    for (const auto& dim : pooling.dims) {
        const auto& window = dim.window;
        auto& count = counts.emplace_back();
        for (auto o = dim.outputs.begin; o < dim.outputs.end; ++o) {
            const auto begin = o * window.stride - window.padding;
            const auto end = std::min(begin + window.kernel, window.in + window.padding);
            const auto n =
                count_include_pad ? end - begin : std::min(end, window.in) - std::max<std::int64_t>(begin, 0);
            count.push_back(std::max<std::int64_t>(n, 1));
            uniform = uniform && count.back() == count.front();
        }
    }
    if (uniform) {
        for (const auto& count : counts) divisor.number *= count.empty() ? 1 : count.front();
        return divisor;
    }
    divisor.tensor = at::ones({}, options);
    for (const auto& count : counts) {
        divisor.tensor = divisor.tensor.unsqueeze(-1) *
                         at::tensor(count, at::kLong).to(options.device(), options.dtype().toScalarType());
    }
    return divisor;
}

std::optional<Pooling> plan_average(const RuleCall& call, const at::Tensor& input, std::int64_t first_arg,
                                    std::int64_t n)
{
    if (!input.is_floating_point()) return std::nullopt;
    return plan(call, input, n, one_a_dim(call.arg(first_arg), n), one_a_dim(call.arg(first_arg + 1), n),
                one_a_dim(call.arg(first_arg + 2), n), std::vector<std::int64_t>(n, 1),
                call.arg(first_arg + 3).toBool());
}

/// avg_poolNd(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override): sums of windows over
/// zero-padded inputs, divided by the counts of the whole's windows.
template <int N>
void average_pool(RuleCall& call)
{
    const auto input = call.tensor(0);
    const auto pooling = plan_average(call, input, 1, N);
    if (!pooling || (!call.arg(6).isNone() && call.arg(6).toInt() == 0)) return gathered_rule(call);

    call.reduce({input});
    const auto& local = local_of(input);
    if (pooling->is_local() && local.numel() > 0) {
        const auto spec = call.spec(pooling->output_layouts);
        call.make_local();
        return call.run({spec});
    }
    const auto piece = borrow(*pooling, local, 0, true);
    const auto shape = pooling->output_shape(local);
    auto result = at::empty({0}, local.options());
    if (c10::multiply_integers(shape) == 0) {
        result = at::empty(shape, local.options());
    } else {
        const auto divisor = divisor_of(*pooling, call.arg(5).toBool(), call.arg(6), local.options());
        const auto kernel = pooling->numbers(&SlidingWindow::kernel), stride = pooling->numbers(&SlidingWindow::stride);
        // With a divisor for each window its sum comes first, which may exceed what half precision holds.
        const auto type = divisor.tensor.defined() ? sum_type(piece.scalar_type()) : piece.scalar_type();
        if constexpr (N == 2)
            result = at::avg_pool2d(piece.to(type), kernel, stride, 0, false, true, divisor.number);
        else
            result = at::avg_pool3d(piece.to(type), kernel, stride, 0, false, true, divisor.number);
        if (divisor.tensor.defined()) result = result.div_(divisor.tensor).to(piece.scalar_type());
    }
    call.finish({wrap(result, call.spec(pooling->output_layouts))});
}

/// avg_poolNd_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
template <int N>
void average_pool_backward(RuleCall& call)
{
    auto gradient = call.tensor(0);
    const auto input = call.tensor(1);
    const auto pooling = plan_average(call, input, 2, N);
    if (!pooling || (!call.arg(7).isNone() && call.arg(7).toInt() == 0)) return gathered_rule(call);

    call.reduce(call.tensors());
    auto local = local_of(with_layouts(call, gradient, pooling->output_layouts));
    if (pooling->is_local() && local.numel() > 0) {
        call.arg(0) = local;
        call.arg(1) = local_of(input);
        return call.run({call.spec(pooling->input_layouts)});
    }
    auto shape = local_of(input).sizes().vec();
    for (const auto& dim : pooling->dims) shape[dim.dim] = dim.before + dim.inputs.size() + dim.after;
    auto result = at::zeros(shape, local.options());
    if (local.numel() > 0) {
        const auto divisor = divisor_of(*pooling, call.arg(6).toBool(), call.arg(7), local.options());
        const auto kernel = pooling->numbers(&SlidingWindow::kernel), stride = pooling->numbers(&SlidingWindow::stride);
        if (divisor.tensor.defined()) local = local.div(divisor.tensor);
        if constexpr (N == 2)
            result = at::avg_pool2d_backward(local, result, kernel, stride, 0, false, true, divisor.number);
        else
            result = at::avg_pool3d_backward(local, result, kernel, stride, 0, false, true, divisor.number);
    }
    for (const auto& dim : pooling->dims) result = result.narrow(dim.dim, dim.before, dim.inputs.size());
    call.finish({wrap(pooling->give_back(result), call.spec(pooling->input_layouts))});
}

const RuleRegistration pooling_rules[] = {
    {"pooling", {"aten::max_pool2d_with_indices"}, max_pool<2>},
    {"pooling", {"aten::max_pool3d_with_indices"}, max_pool<3>},
    {"pooling", {"aten::max_pool2d_with_indices_backward"}, max_pool_backward<2>},
    {"pooling", {"aten::max_pool3d_with_indices_backward"}, max_pool_backward<3>},
    {"pooling", {"aten::avg_pool2d"}, average_pool<2>},
    {"pooling", {"aten::avg_pool3d"}, average_pool<3>},
    {"pooling", {"aten::avg_pool2d_backward"}, average_pool_backward<2>},
    {"pooling", {"aten::avg_pool3d_backward"}, average_pool_backward<3>},
};

/// max_pool1d without gradients reads storage on CPUs, which a sharded tensor does not have; the pooling with indices
/// of two dimensions is used instead.
at::Tensor max_pool1d(const at::Tensor& input, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      at::IntArrayRef dilation, bool ceil_mode)
{
    return std::get<0>(at::max_pool1d_with_indices(input, kernel, stride, padding, dilation, ceil_mode));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse2, library)
{
    library.impl("max_pool1d", max_pool1d);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse2, library)
{
    library.impl("max_pool1d", max_pool1d);
}

}  // namespace
}  // namespace meshard
