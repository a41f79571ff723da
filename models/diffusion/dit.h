// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/diffusion/dit_options.h"
#include "models/layers/memory_mode.h"
#include "sharding/tensor/shard_spec.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <optional>

namespace meshard {

/// Attention among the tokens of a grid, one row for each, (B, N, C) to the same shape: of all to all (`timm`), or of
/// each to those in a window around it (`natten2d`; `natten2d_rope` also rotates queries and keys by their positions).
class DitAttentionImpl : public torch::nn::Module {
public:
    explicit DitAttentionImpl(const DitOptions& options);

    /// @param invalid   (B, N, 1), one where the mask token replaces a token; undefined for none
    /// @param of_grid   layout of the grid whose rows the tokens are (`rows_of_grid`); null for plain tensors
    torch::Tensor forward(torch::Tensor tokens, const torch::Tensor& invalid, const SpecPtr& of_grid);

private:
    torch::Tensor rotated(const torch::Tensor& vectors);

    DitOptions options_;
    torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
    torch::nn::AnyModule q_norm_, k_norm_;
    torch::Tensor mask_token_;  // (1, 1, C)
    torch::Tensor cos_, sin_;   // (rows, columns, 1, channels of a head), in single precision
};
TORCH_MODULE(DitAttention);

/// Attention and an MLP, each on normalised tokens that the condition scales and shifts; the condition also scales
/// their results before they are added (adaLN-Zero).
class DitBlockImpl : public torch::nn::Module {
public:
    DitBlockImpl(const DitOptions& options, double drop_path_rate);

    /// @param tokens      (B, N, C)
    /// @param condition   (B, C)
    /// @param dropout     dropout rate of the attention's input, in training
    torch::Tensor forward(torch::Tensor tokens, const torch::Tensor& condition, const torch::Tensor& invalid,
                          std::optional<double> dropout, const SpecPtr& of_grid);

private:
    torch::Tensor path(const torch::Tensor& gate) const;

    DitOptions options_;
    double drop_path_rate_;
    DitAttention attention_{nullptr};
    torch::nn::Sequential mlp_{nullptr}, modulation_{nullptr};
};
TORCH_MODULE(DitBlock);

/// Diffusion transformer for images (Peebles and Xie 2023, Scalable diffusion models with transformers), with the
/// parameters of PhysicsNeMo's `DiT`: patches become tokens, pass through blocks that time and condition modulate, and
/// become patches again.
///
/// Images may be sharded along rows and columns, best at multiples of the patch: a block of `natten2d` then receives
/// the keys and values in its windows from other ranks, in one message for each cut axis; one of `timm` sends its keys
/// and values around the ring; all else is local, but tokens are gathered for causal attention where rows and columns
/// are both cut. Time and condition must be equal on every rank.
class DitImpl : public torch::nn::Module, public HasMemoryModes {
public:
    /// Initial values are drawn as in the reference, from LibTorch's default generator.
    /// @throws InvalidInput as `DitOptions::validate`.
    explicit DitImpl(DitOptions options);

    /// @param image          (B, in_channels, rows, columns)
    /// @param time           (B)
    /// @param condition      (B, condition_dim); may be undefined
    /// @param invalid_mask   (B, rows, columns) or (B, 1, rows, columns), not zero where a pixel is invalid; with
    /// use_nan_mask_tokens, may be undefined
    /// @param dropout        dropout rate of the attentions' inputs in training; with block_kwargs intermediate_dropout
    /// @return               (B, out_channels, rows, columns)
    /// @throws InvalidInput for other shapes, and for an argument that the model does not have
    torch::Tensor forward(const torch::Tensor& image, const torch::Tensor& time, const torch::Tensor& condition = {},
                          const torch::Tensor& invalid_mask = {}, std::optional<double> dropout = std::nullopt);

    const DitOptions& options() const { return options_; }

    /// `recomputed` keeps the inputs of each block. @throws InvalidInput for `streamed`
    void set_memory(MemoryMode mode) override;

private:
    void initialize();
    torch::Tensor embedded(const torch::Tensor& time, const torch::Tensor& condition);
    torch::Tensor invalid_tokens(const torch::Tensor& mask, const torch::Tensor& tokens) const;
    torch::Tensor tokens_of(const torch::Tensor& grid) const;
    torch::Tensor image_of(const torch::Tensor& tokens, const torch::Tensor& condition, const SpecPtr& of_grid);
    void check_inputs(const torch::Tensor& image, const torch::Tensor& time, const torch::Tensor& condition,
                      const torch::Tensor& invalid_mask, std::optional<double> dropout) const;

    DitOptions options_;
    MemoryMode memory_ = MemoryMode::Stored;
    torch::nn::Conv2d patches_{nullptr};
    torch::Tensor positions_;    // (1, rows * columns, C)
    torch::Tensor frequencies_;  // frequencies of the time embedding
    torch::nn::Sequential time_mlp_{nullptr};
    torch::nn::Linear map_condition_{nullptr}, map_layer0_{nullptr}, map_layer1_{nullptr};
    torch::nn::Linear output_projection_{nullptr};
    torch::nn::Sequential output_modulation_{nullptr}, conv_head_{nullptr};
    torch::nn::ModuleList blocks_;
};
TORCH_MODULE(Dit);

}  // namespace meshard
