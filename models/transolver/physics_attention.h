// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/random_draws.h"
#include "models/transolver/slice_projection.h"

#include <torch/nn/modules/linear.h>

namespace meshard {

/// Attention between learned slices of the points (Wu et al. 2024, Transolver, section 3.2), for points in any order or
/// on a grid.
///
/// Each point is assigned to S slices with softmax weights; the slices' mean features attend to each other; each point
/// gets the sum of the slices' results with its own weights. Letters: B batch, N points, C channels, H heads, D
/// channels of a head, S slices.
///
/// Constants as in PhysicsNeMo's checkpoints: 0.01 added to a slice's weight, temperature kept within [0.5, 5].
class PhysicsAttentionImpl : public torch::nn::Module {
public:
    PhysicsAttentionImpl(SliceOptions options, double dropout);

    /// (B, N, C) to (B, N, C)
    torch::Tensor forward(const torch::Tensor& x);

    /// Sets the layer's weights and sizes in a block of the fused operators. Returns the reason why they cannot compute
    /// `forward`, or null if they can.
    const char* fuse_into(FusedBlock& block) const;

private:
    SliceProjection slices_;
    torch::nn::Linear qkv_project_{nullptr};
    torch::nn::Linear out_linear_{nullptr};
    RowDropout out_dropout_{nullptr};  // null without dropout
};
TORCH_MODULE(PhysicsAttention);

}  // namespace meshard
