// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/tile_kernels.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Slice attention of the points of one sample by kernels. Softmax weights are never stored but computed again wherever
/// they are needed. Tensors are plain, without autograd history, on a GPU or, as the kernels' reference, on the CPU.
/// Sums are added in a fixed order.
///
/// Points of float, bfloat16 or float16 are multiplied on tensor cores with sums in float (tile_kernels.h); float in
/// TF32 if LibTorch's own products on the device use it. Points of double have separate kernels (slice_sweep.h), for
/// tests.
class SlicePoints {
public:
    /// @param x        (n, H D), projected points; rows may be strided
    /// @param slices   (H, S, D), temperature included, of float or double  @param bias  (H, S)
    /// @param inverse_temperature   (H, padded_points(n)) of float: inverse temperatures of the points, factors of
    /// their logits;
    ///                 undefined: 1. Not for double
    /// @param noise    (n, H, S) of float, added to the logits before that; may be undefined, too
    /// @param log_sums   those of another object with the same points; undefined: computed when they are needed
    SlicePoints(const at::Tensor& x, const at::Tensor& slices, const at::Tensor& bias,
                const at::Tensor& inverse_temperature = {}, const at::Tensor& noise = {},
                const at::Tensor& log_sums = {});

    /// Sums of weighted values, then of weights: (n, H D) to (H, S, D + 1), of the type of `slices`.
    at::Tensor sums(const at::Tensor& values);

    /// Means of values over the points, weighted for each slice by a softmax over the points of its logits, then
    /// logarithms of the sums of exponentials: (n, H D) to (H, S, D + 1) of float. Not for double, nor with
    /// temperatures.
    at::Tensor point_means(const at::Tensor& values);

    /// Writes to `result` (n, H D) the states (H, S, D) of the slices at the points: sums of the states weighted by the
    /// points' softmax weights.
    void deslice(const at::Tensor& states, at::Tensor& result);

    struct Gradients {
        at::Tensor slices, bias;  ///< (H, S, D) and (H, S)
        /// (H, padded_points(n)), its padding undefined; undefined if points have no temperatures.
        at::Tensor inverse_temperature;
    };

    /// Gradients through `sums(features)` and `deslice(states)` together. The gradient of the states is not included:
    /// it is `sums(mixed_gradient)`.
    /// @param sums_gradient    (H, S, D + 1), gradient of the result of `sums`
    /// @param mixed_gradient   (n, H D), gradient of the result of `deslice`
    /// @param x_gradient, features_gradient   (n, H D), results; rows may be strided
    /// @param point_means      the result of `point_means(features)`, or that of all points: gradients are then those
    ///                         through it instead of `sums`, given its gradient, and that of the bias is zero
    Gradients backward(const at::Tensor& features, const at::Tensor& states, const at::Tensor& sums_gradient,
                       const at::Tensor& mixed_gradient, at::Tensor& x_gradient, at::Tensor& features_gradient,
                       const at::Tensor& point_means = {});

    /// Logarithms of the sums of exponentials, for another object with the same points.
    const at::Tensor& log_sums();

private:
    TilePoints tiles() const;

    at::Tensor x_, slices_, bias_, warmth_, noise_, log_sums_;
    bool has_log_sums_;
};

/// Returns the tensor in a form that kernels can read: contiguous, aligned to 16 bytes.
at::Tensor for_kernels(const at::Tensor& rows);

/// The arithmetic of the kernels for points of this type on this device.
TileMath tile_math(at::ScalarType type);

/// Corrects the last column of `sums_gradient` (H, S, D + 1), in place, for the rounding of states and sums' gradients
/// in products (tile_kernels.h).
/// @param sums, state_gradients   (H, S, D + 1) and (H, S, D), over all points
void round_totals(at::ScalarType type, const at::Tensor& states, const at::Tensor& sums,
                  const at::Tensor& state_gradients, at::Tensor& sums_gradient);

}  // namespace meshard
