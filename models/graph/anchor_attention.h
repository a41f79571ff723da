// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace meshard {

/// Sines and cosines of places, (..., 3) to (..., num_channels): of each axis the sines of all frequencies, then their cosines; zeros behind them.
torch::Tensor place_embedding(const torch::Tensor& places, std::int64_t num_channels);

/// By how much each pair of a head's channels is turned at a place, (B, N, 3) to (B, N, head_dim / 2); zero angles behind those of the three axes
/// (rotary embedding, Su et al. 2021).
torch::Tensor rotary_angles(const torch::Tensor& places, std::int64_t head_dim);

/// Tokens of one kind, and where they are.
struct Tokens {
    torch::Tensor values;       ///< (B, N, C); undefined for none
    torch::Tensor angles;       ///< (B, N, head_dim / 2)
};

/// Anchors, which others attend to, and queries, which nobody does.
struct Branch {
    Tokens anchors, queries;
};

struct AnchorBlockOptions {
    std::int64_t dim = 0;
    std::int64_t num_heads = 1;
    std::int64_t mlp_ratio = 4;
    std::int64_t condition_dim = 0;     ///< 0 for none
};

/// Which anchors the tokens of a branch attend to.
enum class AnchorsOf : std::uint8_t { Own, Other, All };

/// Scale, shift and gate of each half of a block, from the numbers of a case; nothing without any. Zero at the start, so that a block begins as the identity.
class Modulation {
public:
    void add_to(torch::nn::Module& owner, std::int64_t condition_dim, std::int64_t dim, std::int64_t num_parts);

    /// The parts, each (B, 1, C); none without modulation. @throws InvalidInput if the condition is missing or too many.
    std::vector<torch::Tensor> parts(const torch::Tensor& condition);

private:
    torch::nn::Linear linear_{nullptr};
    std::int64_t num_parts_ = 0;
};

/// A transformer block whose tokens attend to anchors: x += attention(norm(x)), x += mlp(norm(x)). All branches share its weights.
class AnchorBlockImpl : public torch::nn::Module {
public:
    explicit AnchorBlockImpl(const AnchorBlockOptions& options);

    /// One branch attends to its own anchors; of two, each to those that are said.
    void forward(std::vector<Branch>& branches, AnchorsOf anchors, const torch::Tensor& condition);

private:
    std::int64_t num_heads_;
    torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
    torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
    torch::nn::Sequential mlp_{nullptr};
    Modulation modulation_;
};
TORCH_MODULE(AnchorBlock);

/// A transformer block whose tokens attend to tokens of another kind.
class PerceiverBlockImpl : public torch::nn::Module {
public:
    explicit PerceiverBlockImpl(const AnchorBlockOptions& options);

    void forward(std::vector<Branch>& branches, const Tokens& others, const torch::Tensor& condition);

private:
    std::int64_t num_heads_;
    torch::nn::LayerNorm norm1q_{nullptr}, norm1kv_{nullptr}, norm2_{nullptr};
    torch::nn::Linear q_{nullptr}, kv_{nullptr}, proj_{nullptr};
    torch::nn::Sequential mlp_{nullptr};
    Modulation modulation_;
};
TORCH_MODULE(PerceiverBlock);

}  // namespace meshard
