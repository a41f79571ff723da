// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/block_form.h"
#include "models/layers/memory_mode.h"
#include "models/layers/mlp.h"
#include "models/layers/random_draws.h"
#include "models/transolver/slice_projection.h"
#include "models/transolver/transolver_options.h"
#include "ops/fused/streamed_blocks.h"

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <optional>

namespace meshard {

/// One layer of a Transolver: attention and MLP, each applied after a layer norm and added to its input. The last layer
/// ends with the output head.
class TransolverBlockImpl : public torch::nn::Module {
public:
    /// @param attention   (B, N, C) to (B, N, C)
    TransolverBlockImpl(const TransolverOptions& options, torch::nn::AnyModule attention, bool is_last);

    /// (B, N, C) to (B, N, C), or (B, N, out_dim) in the last block.
    torch::Tensor forward(torch::Tensor x);

    /// The block's weights for the fused operators, or the reason why they cannot compute it.
    BlockFusion fusion() const;

private:
    torch::nn::LayerNorm ln_1_{nullptr};
    torch::nn::AnyModule attention_;
    torch::nn::Sequential ln_mlp1_{nullptr};
    torch::nn::Sequential ln_mlp2_{nullptr};  // null except in the last block
};
TORCH_MODULE(TransolverBlock);

/// Cosines and sines of a time at the C/2 frequencies of Vaswani et al. 2017.
class TimeEmbeddingImpl : public torch::nn::Module {
public:
    explicit TimeEmbeddingImpl(std::int64_t num_channels);

    /// (B) to (B, C)
    torch::Tensor forward(const torch::Tensor& time);

private:
    torch::Tensor freqs_;
};
TORCH_MODULE(TimeEmbedding);

/// Transolver (Wu et al. 2024) for meshes, point clouds and grids, and Transolver++ (Luo et al. 2025). Parameters have
/// PhysicsNeMo's names and shapes.
class TransolverImpl : public torch::nn::Module, public HasMemoryModes, public HasBlockForms, public DrawsNoise {
public:
    /// Initial values: weights normal(0, 0.02), biases 0, convolutions as LibTorch initialises them; drawn from
    /// LibTorch's default generator in the reference's order.
    /// @throws InvalidInput as `TransolverOptions::validate`.
    explicit TransolverImpl(TransolverOptions options);

    /// On a grid with extents `structured_shape`, inputs may have shape (B, N, ...) or (B, extents, ...); the result
    /// has the same kind of shape.
    ///
    /// @param fx          (B, N, functional_dim)
    /// @param embedding   (B, N, embedding_dim); not used by a model with `unified_pos`, may be undefined with an
    /// `embedding_dim` of 0
    /// @param time        (B), undefined unless the model has `time_input`
    /// @return            (B, N, out_dim)
    /// @throws InvalidInput on shapes that do not fit the options.
    torch::Tensor forward(const torch::Tensor& fx, const torch::Tensor& embedding = {}, const torch::Tensor& time = {});

    void set_memory(MemoryMode mode) override { memory_ = mode; }
    std::optional<MemoryMode> inference_memory(std::int64_t num_points, std::int64_t bytes) const override;

    std::vector<BlockChoice> block_forms(const torch::Tensor& points) override;

    /// Whether it has the mode Streamed, for points of the type of its weights.
    bool can_stream() const;

    /// The source of Transolver++'s noise (an empty function: random numbers that follow from the points' ids), and
    /// when it is added; by default in training.
    void set_noise(UniformNoise noise) { noise_->given = std::move(noise); }
    void set_noise(NoiseWhen when) { noise_->when = when; }

    void seed_noise(std::uint64_t seed) override { noise_->rows.reseed(seed); }

    const TransolverOptions& options() const { return options_; }

protected:
    using MakeAttention = std::function<torch::nn::AnyModule()>;

    /// Replaces the blocks by blocks with another attention, and draws all weights again.
    void replace_blocks(const MakeAttention& make_attention);

    std::shared_ptr<RowNoise> row_noise() const { return rows_of(noise_); }

private:
    torch::nn::ModuleList make_blocks(const MakeAttention& make_attention) const;
    void draw_weights();
    torch::Tensor point_inputs(const torch::Tensor& fx, const torch::Tensor& embedding,
                               const torch::Tensor& time) const;
    torch::Tensor time_offset(const torch::Tensor& time);

    /// The preprocessing and all blocks for the fused operators, or the first reason why a block cannot be fused.
    struct ModelFusion {
        StreamedModel model;
        const char* obstacle = nullptr;
    };
    ModelFusion fusion(const torch::Tensor& inputs, const torch::Tensor& time);
    StreamedModel fused(const torch::Tensor& inputs, const torch::Tensor& time);  // throws if there is an obstacle
    torch::Tensor run(const torch::Tensor& inputs, const torch::Tensor& time);

    TransolverOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    SharedNoise noise_ = make_noise();
    Mlp preprocess_{nullptr};
    torch::Tensor unified_position_;     // (1, N, ref^2), undefined unless unified_pos
    TimeEmbedding time_embed_{nullptr};  // null unless time_input
    torch::nn::Sequential time_fc_{nullptr};
    torch::nn::ModuleList blocks_;
};
TORCH_MODULE(Transolver);

}  // namespace meshard
