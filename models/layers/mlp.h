// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <string>

namespace meshard {

/// Two linear layers with an activation in between, on the last dimension.
///
/// Parameters: `layers.0.*` (in to hidden), `layers.2.*` (hidden to out); `layers.1` is the activation.
class MlpImpl : public torch::nn::Module {
public:
    MlpImpl(std::int64_t in_dim, std::int64_t hidden_dim, std::int64_t out_dim, const std::string& act);

    torch::Tensor forward(const torch::Tensor& x) { return layers_->forward(x); }

    /// Applies the MLP to points (B, N, in) and adds an offset (B, out) to all points of a sample unless it is
    /// undefined. Uses the fused operators if they support it.
    torch::Tensor on_points(const torch::Tensor& points, const torch::Tensor& offset = {});

    /// The weights for the fused operators.
    FusedMlp fused() const;

private:
    torch::nn::Sequential layers_;
};
TORCH_MODULE(Mlp);

/// A layer norm over the last dimension, of `num_channels` channels.
torch::nn::LayerNorm layer_norm(std::int64_t num_channels);

/// Sets the layer norm before attention, and the layer norm and MLP after it, with their sizes, in a block of the fused
/// operators. For the blocks of Transolver and GeoTransolver.
void fuse_norms_and_mlp(const torch::nn::LayerNorm& ln_1, const torch::nn::Sequential& ln_mlp1, FusedBlock& block);

}  // namespace meshard
