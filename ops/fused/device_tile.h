// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Points in a tile: enough to fill a GPU, and so few that a tile's memory is small compared to that of all points.
inline constexpr std::int64_t kDeviceTilePoints = 1 << 16;

/// A tensor as the start of an autograd graph of its own.
at::Tensor as_leaf(const at::Tensor& values, bool record);

/// Gradients of `results` by `inputs`, undefined where an input does not affect them; the graph stays for further calls.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& results, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& gradients);

/// The two halves of an attention block on a tile of points, for GPUs: products and norms by LibTorch, slices by kernels (`SlicePoints`), or for points in half
/// precision by LibTorch's attention (`AttendedSlices`). Norms, residual sums and sums over points have the type of the weights.
class DeviceTile {
public:
    /// @param leaves   the block's weights as leaves   @param type   of the points
    DeviceTile(const BlockShape& shape, const BlockWeights<at::Tensor>& leaves, at::ScalarType type);

    /// The first half: norm and projections of points (n, C). Without features if only the second half is to follow.
    RecordedTile projected(const at::Tensor& x, bool record, bool with_features = true) const;

    /// Sums of `values` (n, I) and of the points' weights over each slice: (H, S, D + 1) in double.
    at::Tensor slice_sums(const RecordedTile& tile, const at::Tensor& values) const;

    /// The second half: the slices' states (H, S, D) are brought back to the points, then come MLP and head.
    void bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const;

    /// Gradients of a half's inputs. Those of its weights are added to `*weights` unless that is null.
    struct Second {
        at::Tensor x, mixed;
    };
    Second second_backward(const RecordedTile& tile, const at::Tensor& result_gradient, const BlockWeights<at::Tensor>* weights) const;

    /// @param sums_gradient    (H, S, D + 1): of all points' sums
    /// @param mixed_gradient   (n, I), of `second_backward`
    at::Tensor first_backward(const RecordedTile& tile, const at::Tensor& states, const at::Tensor& sums_gradient, const at::Tensor& mixed_gradient,
                              const BlockWeights<at::Tensor>* weights) const;

private:
    template <class Work>
    auto with_slices(const RecordedTile& tile, const Work& work) const;
    at::Tensor normal(const at::Tensor& x, const Affine<at::Tensor>& norm) const;

    BlockShape shape_;
    at::ScalarType type_;
    BlockWeights<at::Tensor> weights_, used_;  // leaves, and the same in the type of the points
};

/// Leaves for a block's weights, and zeros of their shapes for their gradients.
BlockWeights<at::Tensor> leaves_of(const BlockWeights<at::Tensor>& weights);
BlockWeights<at::Tensor> zeros_like(const BlockWeights<at::Tensor>& weights);

}  // namespace meshard
