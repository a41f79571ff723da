// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"
#include "ops/slices/slice_kernels.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// The most points that a device takes through a layer at once if not all activations are kept: enough to fill the
/// device, few enough that their memory is small beside that of all points.
inline constexpr std::int64_t kDeviceTilePoints = 1 << 20;

/// The tensor as the start of an autograd graph of its own.
at::Tensor as_leaf(const at::Tensor& values, bool record);

/// Gradients of `results` with respect to `inputs`, undefined for inputs that do not affect them; the graph is kept for
/// further calls.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs,
                                     const std::vector<at::Tensor>& gradients);

/// An attention block (BlockTile) on devices. Each step is one pass over the points, a product by LibTorch or a kernel
/// (ops/cuda/tile_kernels.h); forward and backward are written out. Points have the type of the weights, or a half
/// precision, for which sums over points and gradients of weights are float.
///
/// Scale and shift of a norm are folded into the next product, whose gradients give theirs: norms store only x_hat and
/// need no pass over the points for scale and shift. Biases need none either: those of a projection follow from the
/// gradients of the slices, those of `out` and `mlp_out` are sums that the backward of a norm computes in its pass, and
/// that of `hidden` a sum of the backward of gelu. Heads are padded to a multiple of 8 channels.
class DeviceLayer {
public:
    /// @param weights  without history
    /// @param type     type of the points
    DeviceLayer(const BlockShape& shape, const BlockWeights<at::Tensor>& weights, at::ScalarType type);

    /// Computes the norm and projections of points (n, C). `ranges` are row ranges of `x`, of one sample each; noise
    /// (n, H, S) is float or undefined.
    LayerPoints project(const at::Tensor& x, std::vector<Tile> ranges, const at::Tensor& noise, bool record) const;

    /// Sums over the points of each sample, (samples of the ranges, H, S, D + 1), of their projected features, or of
    /// `values` (n, I): weighted values, then weights.
    at::Tensor feature_sums(LayerPoints& points) const;
    at::Tensor sums_of(LayerPoints& points, const at::Tensor& values) const;

    /// Second half: gathers the states (B, H, S, D) at the points and computes MLP and head. Returns the result, (n, C)
    /// of the points' type or (n, O) of the weights' type. Without `record` it leaves nothing for backward in `points`;
    /// without `finish` it does not compute the result.
    at::Tensor second_half(LayerPoints& points, const at::Tensor& x, const at::Tensor& states, bool record,
                           bool finish = true) const;

    struct Second {
        at::Tensor x, mixed;  ///< gradients of x (n, C), and of the states gathered at the points (n, I)
    };
    Second second_backward(LayerPoints& points, const at::Tensor& result_gradient);

    /// Restores the result of `second_backward` from its gradient of x.
    Second second_gradients(const at::Tensor& x) const;

    /// Backward of the first half.
    /// @param state_sums      for this rank's points, the result of `sums_of` for the gradient `mixed`
    /// @param sums_gradient   (B, H, S, D + 1), gradient of the sums over all points
    /// @return the gradient of x (n, C)
    at::Tensor first_backward(LayerPoints& points, const at::Tensor& states, const at::Tensor& sums_gradient,
                              const at::Tensor& state_sums, const Second& second);

    /// Gradients of the weights from all calls of the two functions above; zero if there were none.
    BlockWeights<at::Tensor> weight_gradients() const;

private:
    void compute_temperatures(LayerPoints& points, bool record) const;
    SlicePoints slices_of(const LayerPoints& points, std::size_t range) const;
    at::Tensor features_of(const LayerPoints& points) const;
    at::Tensor activated(LayerPoints& points, bool record) const;
    at::Tensor padded(const at::Tensor& of_slices) const;
    at::Tensor padded_sums(const at::Tensor& sums) const;
    at::Tensor without_padding(const at::Tensor& sums) const;
    void add(at::Tensor& to, const at::Tensor& gradient) const;
    void add_product(at::Tensor& to, const at::Tensor& left, const at::Tensor& right) const;

    BlockShape shape_;
    at::ScalarType type_;
    std::int64_t width_;  // padded number of channels of a head
    BlockWeights<at::Tensor> weights_;
    std::vector<Affine<at::Tensor>> projections_;  // for x_mid and features: padded, before the norm is folded in
    Affine<at::Tensor> in_, hidden_, head_;        // folded, in the points' type; the head's outputs padded
    at::Tensor out_, mlp_out_, slices_;            // out_: (I, C)
    struct {
        Affine<at::Tensor> in, out, hidden, mlp_out, head, slices;
        std::vector<at::Tensor> temperature;  // the temperature, then the layers that compute it
        at::Tensor activation;
    } found_;  // gradients of the folded weights
};

}  // namespace meshard
