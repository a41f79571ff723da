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

/// What a device keeps of points in a layer between its passes (DeviceLayer). Tensors are undefined where no later pass needs them.
struct LayerPoints {
    std::vector<Tile> ranges;             ///< rows of one sample each
    NormalRows input;                     ///< of the first norm
    at::Tensor projected;                 ///< (n, 2 I): x_mid, then features; with temperatures of points (n, I), both in one
    at::Tensor noise;                     ///< (n, H, S) of float
    at::Tensor temperature_input;         ///< (n H, D), with temperatures of points: a leaf of the graph that ends in the next
    at::Tensor warmth;                    ///< (n, H) of float
    std::vector<at::Tensor> temperature;  ///< leaves of that graph: the weights
    std::vector<at::Tensor> warm_rows;    ///< by range: (H, padded points), as kernels read it
    std::vector<at::Tensor> log_sums;     ///< by range
    at::Tensor mixed;                     ///< (n, I): what the states brought
    NormalRows residual;                  ///< of the second norm
    at::Tensor hidden, active;            ///< (n, R): before and after the activation
    at::Tensor parameter;                 ///< of an activation other than gelu: a leaf, like `hidden`, of the graph that ends in `active`
    NormalRows last;                      ///< of the norm before the head

    std::vector<at::Tensor*> tensors();  ///< all of them, in an order that depends on the sizes of the lists alone
};

/// One call of `fused_block`: the state that its backward needs besides its inputs.
struct BlockCall : torch::CustomClassHolder {
    FusedBlock block;
    FusedOptions options;
    SpecPtr rows;
    bool by_kernels = false;  ///< computed by DeviceBlockPasses, as on GPUs
    RowDraw noise;            ///< noise of the points, if the block has any
    std::vector<Tile> tiles;
    at::ScalarType type = at::kFloat;       ///< on devices, of the points
    std::vector<std::vector<Tile>> pieces;  ///< on devices, in place of tiles: of points that are in memory together
    LayerPoints kept;                       ///< on devices: what forward leaves for backward; its tensors are saved as autograd saves any
    std::unique_ptr<SliceStates> slices;
    bool recorded = false;
};

/// The gradients that a block's backward computes.
struct BlockPassGradients {
    at::Tensor x;
    std::vector<at::Tensor> weights;  ///< in the order of the block's list
    std::vector<at::Tensor> attend_weights;
};

}  // namespace meshard
