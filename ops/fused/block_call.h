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

/// The tensors of a tile of points that LibTorch's operators take through a block. They keep their autograd history if it is recorded.
struct RecordedTile {
    at::Tensor x, x_mid, features;  ///< of the first half: input (n, C), results (n, I) each
    at::Tensor mixed, result;       ///< of the second half: input (n, I), besides x, result (n, C) or (n, O)
};

/// One call of `fused_block`: the state that its backward needs besides its inputs.
struct BlockCall : torch::CustomClassHolder {
    FusedBlock block;
    FusedOptions options;
    SpecPtr rows;
    bool by_kernels = false;  ///< computed by DeviceBlockPasses, as on GPUs
    RowDraw noise;            ///< noise of the points, if the block has any
    std::vector<Tile> tiles;
    std::vector<RecordedTile> recorded_tiles;
    BlockWeights<at::Tensor> leaves;  ///< the weights as autograd leaves of these tiles
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
