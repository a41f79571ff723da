// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr std::int64_t kChunkPoints = 512;  // a sum of so many is rounded once
constexpr std::int64_t kWidthStep = 8;      // fused kernels take rows of whole 16 bytes

std::int64_t padded(std::int64_t width)
{
    return (width + kWidthStep - 1) / kWidthStep * kWidthStep;
}

/// softmax(queries keys^T) values, (chunks, H, rows, width).
at::Tensor attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values)
{
    return at::scaled_dot_product_attention(queries, keys, values, {}, 0, /*is_causal=*/false, /*scale=*/1.0);
}

}  // namespace

AttendedSlices::AttendedSlices(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias)
    : x_(x), slices_(slices), bias_(bias), num_points_(x.size(0)), chunk_(std::clamp<std::int64_t>(num_points_, 1, kChunkPoints)),
      num_chunks_((num_points_ + chunk_ - 1) / chunk_)
{
}

/// Each point's rows (n, H D) side by side by head, then a one, then zeros: (chunks, H, points, width). Points that fill up the last chunk are zero.
at::Tensor AttendedSlices::by_chunk(at::TensorList parts, bool and_one, std::int64_t width) const
{
    const auto H = slices_.size(0);
    auto all = at::zeros({num_chunks_ * chunk_, H, width}, x_.options());
    const auto points = all.narrow(0, 0, num_points_);
    std::int64_t channel = 0;
    for (const auto& part : parts) {
        const auto channels = part.size(1) / H;
        points.narrow(2, channel, channels).copy_(part.reshape({num_points_, H, channels}));
        channel += channels;
    }
    if (and_one) points.select(2, channel).fill_(1);
    return all.view({num_chunks_, chunk_, H, width}).transpose(1, 2);
}

/// Channels `first` ... `first + D - 1` of each head back at the points: (n, H D).
at::Tensor AttendedSlices::by_point(const at::Tensor& chunks, std::int64_t first) const
{
    const auto H = slices_.size(0), D = slices_.size(2);
    return chunks.narrow(3, first, D).transpose(1, 2).reshape({num_chunks_ * chunk_, H * D}).narrow(0, 0, num_points_);
}

/// Parts (H, S, ...) side by side, then zeros, the same for each chunk: (chunks, H, S, width), a copy each, since gradients of each chunk are wanted.
at::Tensor AttendedSlices::of_slices(at::TensorList parts, std::int64_t width) const
{
    auto all = at::zeros({num_chunks_, slices_.size(0), slices_.size(1), width}, x_.options());
    std::int64_t channel = 0;
    for (const auto& part : parts) {
        all.narrow(3, channel, part.size(2)).copy_(part.unsqueeze(0));
        channel += part.size(2);
    }
    return all;
}

at::Tensor AttendedSlices::sums(const at::Tensor& features) const
{
    const auto D = slices_.size(2), width = padded(D + 1);
    const auto queries = by_chunk({x_}, true, width), keys = of_slices({slices_, bias_.unsqueeze(2)}, width);
    const at::AutoGradMode recording(true);
    const auto values = of_slices({}, width).set_requires_grad(true);
    const auto gradient = torch::autograd::grad({attention(queries, keys, values)}, {values}, {by_chunk({features}, true, width)})[0];
    return gradient.narrow(3, 0, D + 1).sum(0, /*keepdim=*/false, at::kDouble);
}

at::Tensor AttendedSlices::deslice(const at::Tensor& states) const
{
    const auto width = padded(slices_.size(2) + 1);
    const at::NoGradGuard no_grad;
    return by_point(attention(by_chunk({x_}, true, width), of_slices({slices_, bias_.unsqueeze(2)}, width), of_slices({states}, width)), 0);
}

AttendedSlices::Gradients AttendedSlices::backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient,
                                                   const at::Tensor& mixed_gradient) const
{
    // The weights' gradient is mixed_gradient . states + (features, 1) . sums_gradient, that of one attention with both as values.
    const auto D = slices_.size(2), width = padded(2 * D + 1);
    const at::AutoGradMode recording(true);
    const auto queries = by_chunk({x_}, true, width).set_requires_grad(true);
    const auto keys = of_slices({slices_, bias_.unsqueeze(2)}, width).set_requires_grad(true);
    const auto brought = attention(queries, keys, of_slices({states, sums_gradient}, width));
    const auto found = torch::autograd::grad({brought}, {queries, keys}, {by_chunk({mixed_gradient, features}, true, width)});
    const at::NoGradGuard no_grad;
    const auto of_keys = found[1].sum(0, /*keepdim=*/false, at::kDouble).to(slices_.scalar_type());
    return {by_point(found[0], 0), by_point(brought.detach(), D), of_keys.narrow(2, 0, D), of_keys.select(2, D)};
}

}  // namespace meshard
