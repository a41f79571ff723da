// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_tile.h"
#include "ops/slices/activations.h"
#include "ops/slices/row_noise.h"
#include "ops/slices/slice_states.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace meshard {

/// An attention block with its weights.
struct FusedBlock {
    BlockShape shape;
    BlockWeights<at::Tensor> weights;
    AttendFunction attend;
    std::vector<at::Tensor> attend_weights;
    at::Tensor context;  ///< (B, ...), the last of what `attend` gets as weights: what its slices are told of each sample, plain or sharded; may be undefined
    double epsilon = 0;  ///< added to the weight of a slice
    std::shared_ptr<RowNoise> noise;  ///< with temperatures of points: each call takes the next draw, if there is any, as noise of the slices' logits
};

/// An MLP of two layers.
struct FusedMlp {
    at::Tensor hidden, hidden_bias, out, out_bias;   ///< (R, in), (R), (out, R), (out)
    at::Tensor parameter;                            ///< the activation's number, (1); empty if it has none
    const ActivationFunction* activation = nullptr;  ///< null: gelu
};

/// Memory for time: tiles of points that one core takes through the block, of which backward needs more than the block's input.
struct FusedOptions {
    bool keep_activations = true;  ///< else backward computes them again: a block keeps nothing but its input
    std::int64_t tile_points = 0;  ///< 0: what fits the cache. Results change by rounding only
};

/// Why the fused operators cannot take these points (B, N, C) through a block, or an MLP, as half a sentence about the block; null if they can: float or double
/// as the weights and on their device, with a layout that cuts batch or rows at most. On a CPU under autocast to bfloat16 points may be in that, too. Not under
/// other autocast, nor in exact mode for float, nor with sharded weights; on a GPU no MLP, no heads of more than 128 channels, no temperatures of points.
const char* fusion_obstacle(const at::Tensor& points, const FusedBlock& block);
const char* fusion_obstacle(const at::Tensor& points, const FusedMlp& mlp);

/// The type in which points of float or double go from block to block: bfloat16 in place of float under autocast to it. That is what is kept of a point, too;
/// all arithmetic, sums over points and weights' gradients stay in the type of the weights.
at::ScalarType type_between_blocks(at::ScalarType type);

/// One block of a Transolver, of which BlockTile says what it computes, for plain or sharded points (B, N, C). Slice weights, (B, N, H, S), are never
/// stored. One all-reduce forward, one backward, as SliceStates says. Result: (B, N, C), of the type of `x`, or with a head (B, N, O), of that of the weights;
/// sharded as `x`. On a GPU: device_block.h.
///
/// @throws InvalidInput in backward with create_graph; for temperatures of points on a GPU
at::Tensor fused_block(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

/// out(f(hidden(x))) + offset, f the activation, keeping nothing but x (B, N, in), on the CPU; in `type_between_blocks`.
/// @param offset   (B, out), added to all points of a sample; may be undefined
at::Tensor fused_mlp(const at::Tensor& x, const FusedMlp& mlp, const at::Tensor& offset = {});

}  // namespace meshard
