// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_tile.h"
#include "ops/slices/activations.h"
#include "ops/slices/row_noise.h"
#include "ops/slices/slice_states.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace meshard {

/// An attention block with its weights.
struct FusedBlock {
    BlockShape shape;
    BlockWeights<at::Tensor> weights;
    AttendFunction attend;
    std::vector<at::Tensor> attend_weights;
    at::Tensor context;  ///< (B, ...), passed to `attend` as its last weight: a context for the slices of each sample, plain or sharded; may be undefined
    double epsilon = 0;  ///< added to the weight of a slice
    std::shared_ptr<RowNoise> noise;  ///< with temperatures of points: noise of the slices' logits, one draw for each call; may be null
};

/// An MLP of two layers.
struct FusedMlp {
    at::Tensor hidden, hidden_bias, out, out_bias;   ///< (R, in), (R), (out, R), (out)
    at::Tensor parameter;                            ///< the activation's parameter, (1); empty if it has none
    const ActivationFunction* activation = nullptr;  ///< null: gelu
};

/// Choices between memory and time.
struct FusedOptions {
    bool keep_activations = true;  ///< otherwise a block keeps only its input, and backward computes activations again
    std::int64_t tile_points = 0;  ///< points of a tile; 0: as many as fit the cache. Results differ by rounding only
};

/// The reason why the fused operators cannot compute a block, or an MLP, on these points (B, N, C), as a clause about the block ("its weights are sharded");
/// null if they can. Points must be float or double, with type and device of the weights, and cut along batch or rows at most; under autocast to half precision
/// (on CPUs bfloat16) they may have that type, too. Not under other autocast, in exact mode for float, or with sharded weights; on a GPU no
/// heads of more than 128 channels, or 64 where points have temperatures.
const char* fusion_obstacle(const at::Tensor& points, const FusedBlock& block);
const char* fusion_obstacle(const at::Tensor& points, const FusedMlp& mlp);

/// The half precision to which autocast brings products on a device; none where it is off.
std::optional<at::ScalarType> half_type_on(const at::Device& device);

/// On CPUs, the type of points between blocks: bfloat16 instead of float under autocast to it. Kept activations have this type, too; arithmetic, sums over
/// points and weights' gradients have the type of the weights.
at::ScalarType type_between_blocks(at::ScalarType type);

/// One block of a Transolver (see BlockTile) for plain or sharded points (B, N, C). Slice weights, (B, N, H, S), are never stored. One all-reduce in forward
/// and one in backward (see SliceStates). Result: (B, N, C) with the type of `x`, or with a head (B, N, O) with that of the weights; with the layout of `x`. On
/// a GPU: device_block.h.
///
/// @throws InvalidInput in backward with create_graph; for temperatures of points on a GPU
at::Tensor fused_block(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

/// out(f(hidden(x))) + offset, f the activation, on devices gelu; keeps only x (B, N, in) for backward. The result has the type `type_between_blocks`, on
/// devices under autocast that of autocast.
/// @param offset   (B, out), added to all points of a sample; may be undefined
at::Tensor fused_mlp(const at::Tensor& x, const FusedMlp& mlp, const at::Tensor& offset = {});

}  // namespace meshard
