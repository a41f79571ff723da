// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Slice attention of the points of one sample, by the kernels of ops/cuda/slice_sweep.h: softmax weights are never stored but computed again wherever they are
/// needed. Plain tensors, float or double, without autograd history, on a GPU or, as the kernels' reference, on the CPU. Sums are added in a fixed order.
class SlicePoints {
public:
    /// @param x        (n, H D), projected points
    /// @param slices   (H, S, D) with the temperature  @param bias  (H, S)
    SlicePoints(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias);

    /// Sums of weighted features, then of weights: (n, H D) to (H, S, D + 1) in double.
    at::Tensor sums(const at::Tensor& features) const;

    /// States (H, S, D) of the slices at the points, (n, H D): sums of the states weighted by the points' softmax weights.
    at::Tensor deslice(const at::Tensor& states) const;

    struct Gradients {
        at::Tensor x, features;   ///< (n, H D)
        at::Tensor slices, bias;  ///< (H, S, D) and (H, S)
    };

    /// Gradients through `sums(features)` and `deslice(states)` together. The gradient of the states is not among them: it is `sums(mixed_gradient)`.
    /// @param sums_gradient    (H, S, D + 1), gradient of the result of `sums`
    /// @param mixed_gradient   (n, H D), gradient of the result of `deslice`
    Gradients backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient) const;

private:
    at::Tensor x_, slices_, bias_, log_sums_;
};

/// Whether the kernels support heads of `head_dim` numbers.
bool fits_slice_kernels(std::int64_t head_dim);

}  // namespace meshard
