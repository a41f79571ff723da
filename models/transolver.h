// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include "models/mlp.h"
#include "models/physics_attention.h"
#include "models/transolver_options.h"

namespace meshard {

/// One layer of a Transolver: attention and MLP, each behind a layer norm and added to its input; the last one ends in the
/// output head instead of handing on its channels.
class TransolverBlockImpl : public torch::nn::Module {
public:
    TransolverBlockImpl(const TransolverOptions& options, bool is_last);

    /// (B, N, C) to (B, N, C), or (B, N, out_dim) from the last.
    torch::Tensor forward(torch::Tensor x);

private:
    torch::nn::LayerNorm ln_1_{nullptr};
    PhysicsAttention attention_{nullptr};
    torch::nn::Sequential ln_mlp1_{nullptr};
    torch::nn::Sequential ln_mlp2_{nullptr};   // null except in the last
};
TORCH_MODULE(TransolverBlock);

/// Cosines and sines of a time at C/2 frequencies, those of Vaswani et al. 2017.
class TimeEmbeddingImpl : public torch::nn::Module {
public:
    explicit TimeEmbeddingImpl(std::int64_t num_channels);

    /// (B) to (B, C)
    torch::Tensor forward(const torch::Tensor& time);

private:
    torch::Tensor freqs_;
};
TORCH_MODULE(TimeEmbedding);

/// Transolver (Wu et al. 2024) for irregular meshes and point clouds. Parameters have PhysicsNeMo's names and shapes.
class TransolverImpl : public torch::nn::Module {
public:
    /// Initial values: weights normal(0, 0.02), biases 0, drawn from LibTorch's default generator in the reference's order.
    /// @throws InvalidInput as `TransolverOptions::validate`.
    explicit TransolverImpl(TransolverOptions options);

    /// @param fx          (B, N, functional_dim)
    /// @param embedding   (B, N, embedding_dim)
    /// @param time        (B), undefined unless the model has `time_input`
    /// @return            (B, N, out_dim)
    /// @throws InvalidInput on shapes that do not fit the options.
    torch::Tensor forward(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time = {});

    const TransolverOptions& options() const { return options_; }

private:
    TransolverOptions options_;
    Mlp preprocess_{nullptr};
    TimeEmbedding time_embed_{nullptr};        // null unless time_input
    torch::nn::Sequential time_fc_{nullptr};
    torch::nn::ModuleList blocks_;
};
TORCH_MODULE(Transolver);

}  // namespace meshard
