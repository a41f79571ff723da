// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/device_rows.h"
#include "ops/fused/fused_block.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_states.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <memory>
#include <vector>

namespace meshard {

/// State of a layer's points that a device keeps between its passes (DeviceLayer). Tensors are undefined if no later
/// pass needs them.
struct LayerPoints {
    std::vector<Tile> ranges;  ///< row ranges of one sample each
    NormalRows input;          ///< state of the first norm
    /// (n, 2 I): x_mid, then features; with temperatures of points one (n, I) for both.
    at::Tensor projected;
    at::Tensor noise;  ///< (n, H, S) of float
    /// (n H, D), with temperatures of points: a leaf of the graph that ends in `inverse_temperature`.
    at::Tensor temperature_input;
    at::Tensor inverse_temperature;                     ///< (n, H) of float
    std::vector<at::Tensor> temperature;                ///< leaves of that graph: the weights that compute temperatures
    std::vector<at::Tensor> scale_rows_by_temperature;  ///< for each range (H, padded points), as kernels read it
    std::vector<at::Tensor> log_sums;                   ///< for each range
    at::Tensor mixed;                                   ///< (n, I): states gathered at the points
    NormalRows residual;                                ///< state of the second norm
    at::Tensor hidden, active;                          ///< (n, R): before and after the activation
    /// Parameter of an activation other than gelu; like `hidden` a leaf of the graph that ends in `active`.
    at::Tensor parameter;
    NormalRows last;  ///< state of the norm before the head

    /// Pointers to all tensors, in an order that depends only on the sizes of the lists.
    std::vector<at::Tensor*> tensors();
};

class DeviceLayer;

/// One call of `fused_block`: the state that its backward needs besides its inputs.
struct BlockCall : torch::CustomClassHolder {
    FusedBlock block;
    FusedOptions options;
    SpecPtr rows;
    bool by_kernels = false;  ///< whether DeviceBlockPasses computes the block, as on GPUs
    RowDraw noise;            ///< noise of the points, if the block has any
    std::vector<Tile> tiles;
    at::ScalarType type = at::kFloat;  ///< on devices: type of the points
    /// On devices, instead of tiles: ranges of points that are in memory together.
    std::vector<std::vector<Tile>> pieces;
    /// On devices: state that forward keeps for backward; autograd saves its tensors.
    LayerPoints kept;
    std::shared_ptr<const DeviceLayer> layer;  ///< on devices: the weights as forward has prepared them
    std::unique_ptr<SliceStates> slices;
    bool recorded = false;
};

/// The gradients that a block's backward computes.
struct BlockPassGradients {
    at::Tensor x;
    std::vector<at::Tensor> weights;  ///< in the order of the block's list of weights
    std::vector<at::Tensor> attend_weights;
};

}  // namespace meshard
