// SPDX-License-Identifier: Apache-2.0
// Gradients of poolings, paddings and interpolations in exact mode on devices, where LibTorch's kernels add with
// atomics: here the order is fixed.
#include "ops/grids/grid_cuts.h"
#include "ops/grids/plane_indices.h"
#include "sharding/tensor/fixed_order.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <functional>
#include <vector>

namespace meshard {
namespace {

/// Applies an operator to inputs of shape (B, 1, ...) that have two entries in each grid dimension but the `i`th, and
/// leaves those as they are.
using AlongDim = std::function<at::Tensor(const at::Tensor& inputs, std::int64_t i)>;

/// The adjoint of a linear operator that acts on the last dimensions of a grid, with `in` entries, one by one: a
/// product with a matrix for each.
at::Tensor adjoint(const at::Tensor& gradient, c10::IntArrayRef in, const AlongDim& along)
{
    const auto n = std::ssize(in);
    auto result = gradient.to(at::toOpMathType(gradient.scalar_type()));
    for (std::int64_t i = 0; i < n; ++i) {
        // Two entries, since with one LibTorch 2.11 confuses dimensions in antialiased interpolation.
        std::vector<std::int64_t> units(n + 2, 1), shape(n + 2, 2);
        units[0] = units[i + 2] = shape[0] = shape[i + 2] = in[i];
        shape[1] = 1;
        auto matrix = along(at::eye(in[i], result.options()).view(units).expand(shape).contiguous(), i);
        for (std::int64_t d = 0; d < n; ++d) matrix = d == i ? matrix : matrix.narrow(d + 2, 0, 1);
        matrix = matrix.reshape({in[i], -1});  // a row for each input
        const auto dim = gradient.dim() - n + i;
        result = at::matmul(result.movedim(dim, -1), matrix.t()).movedim(-1, dim);
    }
    return result.to(gradient.scalar_type()).contiguous();
}

std::vector<std::int64_t> last_sizes(const at::Tensor& tensor, std::int64_t n)
{
    return tensor.sizes().slice(tensor.dim() - n).vec();
}

/// `value` in dimension `i`, `other` elsewhere.
std::vector<std::int64_t> only(std::int64_t n, std::int64_t i, std::int64_t value, std::int64_t other)
{
    std::vector<std::int64_t> list(n, other);
    list[i] = value;
    return list;
}

/// The operator of which the call is the backward.
c10::OperatorHandle forward_of(const RuleCall& call)
{
    const auto name = call.name().substr(0, call.name().rfind("_backward"));
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

/// upsample_*_backward(grad_output, output_size, input_size, [align_corners], scales...)
std::vector<at::Tensor> of_interpolation(const RuleCall& call)
{
    const auto forward = forward_of(call);
    const auto out = call.arg(1).toIntVector(), in = call.arg(2).toIntVector();
    const auto n = std::ssize(out);
    return {adjoint(call.tensor(0), c10::IntArrayRef(in).slice(2), [&](const at::Tensor& inputs, std::int64_t i) {
        torch::jit::Stack stack{inputs, only(n, i, out[i], 2)};
        auto next = std::int64_t{3};
        if (call.arg(next).isBool()) stack.push_back(call.arg(next++));
        for (std::int64_t d = 0; d < n; ++d) stack.push_back(d == i ? call.arg(next + d) : c10::IValue());
        forward.callBoxed(&stack);
        return stack[0].toTensor();
    })};
}

/// reflection_padNd_backward(grad_output, self, padding), replication_padNd_backward
template <int N>
std::vector<at::Tensor> of_padding(const RuleCall& call)
{
    const auto forward = forward_of(call);
    const auto amounts = call.arg(2).toIntVector();  // front and back, from the last dimension on
    return {adjoint(call.tensor(0), last_sizes(call.tensor(1), N), [&](const at::Tensor& inputs, std::int64_t i) {
        std::vector<std::int64_t> of_one(2 * N, 0);
        const auto place = static_cast<std::size_t>(2 * (N - 1 - i));
        of_one[place] = amounts[place];
        of_one[place + 1] = amounts[place + 1];
        torch::jit::Stack stack{inputs, of_one};
        forward.callBoxed(&stack);
        return stack[0].toTensor();
    })};
}

/// _adaptive_avg_poolNd_backward(grad_output, self)
template <int N>
std::vector<at::Tensor> of_averages_to_a_size(const RuleCall& call)
{
    const auto out = last_sizes(call.tensor(0), N);
    return {adjoint(call.tensor(0), last_sizes(call.tensor(1), N), [&](const at::Tensor& inputs, std::int64_t i) {
        const auto size = only(N, i, out[i], 2);
        return N == 2 ? at::_adaptive_avg_pool2d(inputs, size) : at::_adaptive_avg_pool3d(inputs, size);
    })};
}

/// avg_pool3d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad,
/// divisor_override). The number of entries that a window counts is a product of one number for each dimension, too.
std::vector<at::Tensor> of_averages(const RuleCall& call)
{
    const auto kernel = one_a_dim(call.arg(2), 3), padding = one_a_dim(call.arg(4), 3);
    const auto stride = call.arg(3).toIntVector().empty() ? kernel : one_a_dim(call.arg(3), 3);
    const auto divisor = call.arg(7).toOptional<std::int64_t>();
    auto result = adjoint(call.tensor(0), last_sizes(call.tensor(1), 3), [&](const at::Tensor& inputs, std::int64_t i) {
        return at::avg_pool3d(inputs, only(3, i, kernel[i], 1), only(3, i, stride[i], 1), only(3, i, padding[i], 0),
                              call.arg(5).toBool(), call.arg(6).toBool(),
                              divisor ? std::optional<std::int64_t>(1) : std::nullopt);
    });
    return {divisor ? result.div_(static_cast<double>(*divisor)) : result};
}

/// Adds the gradient at the entries that were the largest of their windows, given as indices into the plane.
template <int N, int kIndices>
std::vector<at::Tensor> of_largest(const RuleCall& call)
{
    const auto in = last_sizes(call.tensor(1), N);
    std::vector<Range> plane;
    for (const auto size : in) plane.push_back({0, size});
    return {scatter_to_box(call.tensor(0), call.tensor(kIndices), plane, in)};
}

const FixedOrderRegistration fixed_order_gradients[] = {
    {{"aten::upsample_linear1d_backward", "aten::upsample_bilinear2d_backward", "aten::upsample_trilinear3d_backward",
      "aten::upsample_bicubic2d_backward", "aten::_upsample_bilinear2d_aa_backward",
      "aten::_upsample_bicubic2d_aa_backward"},
     of_interpolation},
    {{"aten::reflection_pad1d_backward", "aten::replication_pad1d_backward"}, of_padding<1>},
    {{"aten::reflection_pad2d_backward", "aten::replication_pad2d_backward"}, of_padding<2>},
    {{"aten::reflection_pad3d_backward", "aten::replication_pad3d_backward"}, of_padding<3>},
    {{"aten::_adaptive_avg_pool2d_backward"}, of_averages_to_a_size<2>},
    {{"aten::_adaptive_avg_pool3d_backward"}, of_averages_to_a_size<3>},
    {{"aten::avg_pool3d_backward"}, of_averages},
    {{"aten::max_pool2d_with_indices_backward"}, of_largest<2, 7>},
    {{"aten::max_pool3d_with_indices_backward"}, of_largest<3, 7>},
    {{"aten::adaptive_max_pool2d_backward"}, of_largest<2, 2>},
    {{"aten::adaptive_max_pool3d_backward"}, of_largest<3, 2>},
};

}  // namespace
}  // namespace meshard
