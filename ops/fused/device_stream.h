// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/device_layer.h"
#include "ops/fused/streamed_blocks.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// The gradients that `streamed_blocks` computes.
struct StreamGradients {
    at::Tensor points;  ///< undefined unless wanted
    std::vector<at::Tensor> mlp;
    at::Tensor offset;                                             ///< undefined unless the model has one
    std::vector<std::vector<at::Tensor>> weights, attend_weights;  ///< by block
};

/// Layers from one whose input backward keeps to the next.
inline constexpr std::int64_t kStreamLayersApart = 4;

/// Forward and backward of `streamed_blocks` for GPUs, layer by layer over tiles of the points, each by DeviceLayer. Beside points and result it needs the
/// memory of one tile in one layer, and of each point rows of one layer's channels: in forward one, its input; in backward the same, its gradient, and the
/// inputs of every fourth layer, from which those between are computed again.
class DeviceStreamPasses {
public:
    /// @param points   this rank's, plain   @param model   with this rank's weights
    /// @param type     of the points between layers: that of the weights, or half precision
    DeviceStreamPasses(const at::Tensor& points, const StreamedModel& model, const std::vector<RowDraw>& noise, at::ScalarType type);

    /// The slices of all layers, from the first to the last. One all-reduce a layer where rows are cut.
    std::vector<SliceStates> find_states(const SpecPtr& rows, bool record);

    /// The model's result by the states that `find_states` gave.
    at::Tensor result();

    StreamGradients backward(const std::vector<SliceStates>& slices, const at::Tensor& result_gradient, bool wants_points);

private:
    std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
    at::Tensor rows(const at::Tensor& points, const Tile& tile) const;
    at::Tensor begin(const at::Tensor& points, const Tile& tile) const;
    LayerPoints project(std::int64_t layer, const at::Tensor& x, const Tile& tile, bool record) const;
    at::Tensor output(std::int64_t layer, const at::Tensor& x, const Tile& tile) const;
    at::Tensor input(std::int64_t layer, const Tile& tile) const;
    void go_to_first();
    void go_to_next(std::int64_t layer);
    void backward_of_layer(std::int64_t layer, const SliceStates& slices, const at::Tensor& result_gradient, std::vector<at::Tensor>& of_attention);

    at::Tensor points_;
    const StreamedModel& model_;
    const std::vector<RowDraw>& noise_;  // by block
    at::ScalarType type_;
    std::vector<Tile> tiles_;
    std::vector<at::Tensor> mlp_, used_mlp_;  // leaves, and the same in the type of the points
    at::Tensor offset_;                       // a leaf
    std::vector<DeviceLayer> layers_;
    std::vector<at::Tensor> states_;  // by block
    at::Tensor x_, gradient_;         // (B, n, C) of the present layer's input; the gradient of its output, later of its input
    std::vector<at::Tensor> inputs_;  // (B, n, C) of layers 4, 8, ...
};

}  // namespace meshard
