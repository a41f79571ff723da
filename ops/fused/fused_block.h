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
    /// (B, ...), passed to `attend` as its last weight: a context for the slices of each sample, plain or sharded; may
    /// be undefined.
    at::Tensor context;
    double epsilon = 0;  ///< added to the weight of a slice
    /// With temperatures of points: noise of the slices' logits, drawn once for each call; may be null.
    std::shared_ptr<RowNoise> noise;
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

/// The reason why the fused operators cannot compute a block, or an MLP, on these points (B, N, C), as a clause about
/// the block ("its weights are sharded"); null if they can. Points must be float or double, with type and device of the
/// weights, and sharded along batch or rows at most; under autocast to half precision (on CPUs bfloat16) they may have
/// that type, too. Other kinds of autocast, exact mode for float, and sharded weights are excluded; on a GPU also heads
/// of more than 128 channels, or 64 if points have temperatures.
const char* fusion_obstacle(const at::Tensor& points, const FusedBlock& block);
const char* fusion_obstacle(const at::Tensor& points, const FusedMlp& mlp);

/// The half precision of autocast on a device; none if autocast is off.
std::optional<at::ScalarType> half_type_on(const at::Device& device);

/// The type of points between blocks on CPUs: bfloat16 instead of float under autocast to bfloat16. Kept activations
/// have this type, too; arithmetic, sums over points and weights' gradients have the type of the weights.
at::ScalarType type_between_blocks(at::ScalarType type);

/// One block of a Transolver (see BlockTile) for plain or sharded points (B, N, C). Slice weights, (B, N, H, S), are
/// never stored. One all-reduce in forward and one in backward (see SliceStates). Returns (B, N, C) in the type of `x`,
/// or with a head (B, N, O) in that of the weights; with the layout of `x`. On a GPU: device_block.h.
///
/// @throws InvalidInput in backward with create_graph; for temperatures of points on a GPU
at::Tensor fused_block(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

/// out(f(hidden(x))) + offset with the activation f (gelu on devices); keeps only x (B, N, in) for backward. The result
/// has the type `type_between_blocks`, on devices under autocast that of autocast.
/// @param offset   (B, out), added to all points of a sample; may be undefined
at::Tensor fused_mlp(const at::Tensor& x, const FusedMlp& mlp, const at::Tensor& offset = {});

}  // namespace meshard
