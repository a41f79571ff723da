// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/slices/slice_kernels.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// SlicePoints by LibTorch's attention, whose fused kernels multiply in half precision with sums in single precision: points are queries and slices keys, with
/// the bias as one more channel. What `deslice` brings back is the attention's output; sums over points are its gradient of the values. The weights are stored
/// nowhere but by LibTorch's plain form, which it takes where a device has no fused one.
///
/// Points go in chunks, each a sample of a batch with the same keys, so that few slices still fill a device; the chunks' sums are rounded to the type of the
/// points and added in double, in a fixed order.
class AttendedSlices {
public:
    using Gradients = SlicePoints::Gradients;

    /// Plain tensors without autograd history. All is computed in the type of `x`.
    /// @param x        (n, H D), projected points
    /// @param slices   (H, S, D) with the temperature  @param bias  (H, S)
    AttendedSlices(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias);

    /// As those of SlicePoints: results for points are of the type of `x`, those for slices of the type of `slices`.
    at::Tensor sums(const at::Tensor& features) const;
    at::Tensor deslice(const at::Tensor& states) const;
    Gradients backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient) const;

private:
    at::Tensor by_chunk(at::TensorList parts, bool and_one, std::int64_t width) const;
    at::Tensor by_point(const at::Tensor& chunks, std::int64_t first) const;
    at::Tensor of_slices(at::TensorList parts, std::int64_t width) const;

    at::Tensor x_, slices_, bias_;
    std::int64_t num_points_, chunk_, num_chunks_;
};

}  // namespace meshard
