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
    at::Tensor offset;                                             ///< undefined if the model has no offset
    std::vector<std::vector<at::Tensor>> weights, attend_weights;  ///< for each block
};

/// Backward keeps the input of every so many layers.
inline constexpr std::int64_t kStreamLayersApart = 4;

/// Forward and backward of `streamed_blocks` for GPUs, layer by layer over tiles of the points, each by DeviceLayer.
/// Besides points and result it needs the memory of one tile in one layer, and for every point one layer's channels: in
/// forward once, the layer's input; in backward also its gradient, and the inputs of every fourth layer, from which
/// those between are computed again.
class DeviceStreamPasses {
public:
    /// @param points   this rank's points, plain
    /// @param model    the model with this rank's weights
    /// @param type     type of the points between layers: that of the weights, or half precision
    DeviceStreamPasses(const at::Tensor& points, const StreamedModel& model, const std::vector<RowDraw>& noise,
                       at::ScalarType type);

    /// The slices of all layers, in order. One all-reduce a layer if rows are sharded.
    std::vector<SliceStates> find_states(const SpecPtr& rows, bool record);

    /// The model's result by the states that `find_states` gave.
    at::Tensor result();

    StreamGradients backward(const std::vector<SliceStates>& slices, const at::Tensor& result_gradient,
                             bool wants_points);

private:
    std::int64_t num_layers() const { return std::ssize(layers_); }
    at::Tensor rows(const at::Tensor& points, const Tile& tile) const;
    at::Tensor begin(const at::Tensor& points, const Tile& tile) const;
    LayerPoints project(std::int64_t layer, const at::Tensor& x, const Tile& tile, bool record) const;
    at::Tensor output(std::int64_t layer, const at::Tensor& x, const Tile& tile) const;
    at::Tensor input(std::int64_t layer, const Tile& tile) const;
    void start_first_layer();
    void advance_layer(std::int64_t layer);
    void backward_of_layer(std::int64_t layer, const SliceStates& slices, const at::Tensor& result_gradient,
                           std::vector<at::Tensor>& of_attention);

    at::Tensor points_;
    const StreamedModel& model_;
    const std::vector<RowDraw>& noise_;  // for each block
    at::ScalarType type_;
    std::vector<Tile> tiles_;
    std::vector<at::Tensor> mlp_, used_mlp_;  // leaves, and the same weights in the type of the points
    at::Tensor offset_;                       // a leaf
    std::vector<DeviceLayer> layers_;
    std::vector<at::Tensor> states_;  // for each block
    // (B, n, C): input of the present layer; gradient of its output, later of its input.
    at::Tensor x_, gradient_;
    std::vector<at::Tensor> inputs_;  // (B, n, C): inputs of layers 4, 8, ...
};

}  // namespace meshard
