// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Points of one sample in the slices of an attention, by the kernels of ops/cuda/slice_sweep.h: softmax weights are computed again wherever they are
/// needed and never stored. Plain tensors, float or double, without history, on a GPU or, as the kernels' reference, on the CPU. Sums are added in a fixed
/// order.
class SlicePoints {
public:
    /// @param x        (n, H D), projected points
    /// @param slices   (H, S, D) with the temperature  @param bias  (H, S)
    SlicePoints(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias);

    /// Sums of weighted features, then of weights: (n, H D) to (H, S, D + 1) in double.
    at::Tensor sums(const at::Tensor& features) const;

    /// What the states (H, S, D) of the slices are at the points, (n, H D).
    at::Tensor brought_back(const at::Tensor& states) const;

    struct Gradients {
        at::Tensor x, features;       ///< (n, H D)
        at::Tensor slices, bias;      ///< (H, S, D) and (H, S)
    };

    /// Of `sums(features)` and `brought_back(states)` together, but for that of the states, which is `sums(mixed_gradient)`.
    /// @param sums_gradient    (H, S, D + 1)
    /// @param mixed_gradient   (n, H D)
    Gradients backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient) const;

private:
    at::Tensor x_, slices_, bias_, log_sums_;
};

/// Whether heads of so many numbers fit the kernels.
bool fits_slice_kernels(std::int64_t head_dim);

}  // namespace meshard
