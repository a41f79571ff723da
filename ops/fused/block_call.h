// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"
#include "ops/rows/tile_schedule.h"
#include "ops/slices/slice_states.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <memory>
#include <vector>

namespace meshard {

/// A tile of points on its way through a block by LibTorch's operators; gradients of what has a history can be asked for.
struct RecordedTile {
    at::Tensor x, x_mid, features;  ///< first half: (n, C) to (n, I) twice
    at::Tensor mixed, result;       ///< second half, with x: (n, I) to (n, C) or (n, O)
};

/// One call of `fused_block`: what its backward needs besides its inputs.
struct BlockCall : torch::CustomClassHolder {
    FusedBlock block;
    FusedOptions options;
    SpecPtr rows;
    bool by_kernels = false;  ///< as on GPUs: DeviceBlockPasses
    RowDraw noise;            ///< of the points, if the block has any
    std::vector<Tile> tiles;
    std::vector<RecordedTile> recorded_tiles;
    BlockWeights<at::Tensor> leaves;  ///< the weights, as these tiles know them
    std::unique_ptr<SliceStates> slices;
    bool recorded = false;
};

/// What a block's backward gives.
struct BlockPassGradients {
    at::Tensor x;
    std::vector<at::Tensor> weights;  ///< in the order of the block's list
    std::vector<at::Tensor> attend_weights;
};

}  // namespace meshard
