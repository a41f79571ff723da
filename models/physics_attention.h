// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

namespace meshard {

/// Attention between learned slices of the points (Wu et al. 2024, Transolver, section 3.2), for points in any order.
///
/// Each point gives itself to S slices with softmax weights; the slices' mean features attend to each other; each point takes
/// back the mixture of slices that it belongs to. Letters: B batch, N points, C channels, H heads, D = C / H, S slices.
///
/// Constants as in PhysicsNeMo's checkpoints: 0.01 added to a slice's weight, temperature kept within [0.5, 5].
class PhysicsAttentionImpl : public torch::nn::Module {
public:
    PhysicsAttentionImpl(std::int64_t dim, std::int64_t num_heads, std::int64_t num_slices, double dropout);

    /// (B, N, C) to (B, N, C)
    torch::Tensor forward(const torch::Tensor& x);

private:
    std::int64_t num_heads_;
    torch::Tensor temperature_;                // (1, 1, H, 1)
    torch::nn::Linear in_project_slice_{nullptr};
    torch::nn::Linear qkv_project_{nullptr};
    torch::nn::Linear out_linear_{nullptr};
    torch::nn::Linear in_project_x_{nullptr};
    torch::nn::Linear in_project_fx_{nullptr};
    torch::nn::Dropout out_dropout_{nullptr};  // null when there is none
};
TORCH_MODULE(PhysicsAttention);

}  // namespace meshard
