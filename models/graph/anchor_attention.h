// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Embedding of positions, (..., 3) to (..., num_channels): for each axis the sines of all frequencies, then their
/// cosines; remaining channels are zero.
torch::Tensor position_embedding(const torch::Tensor& positions, std::int64_t num_channels);

/// Rotation angle of each pair of a head's channels at each position, (B, N, 3) to (B, N, head_dim / 2), for the rotary
/// embedding (Su et al. 2021); remaining angles are zero.
torch::Tensor rotary_angles(const torch::Tensor& positions, std::int64_t head_dim);

/// Tokens of one kind, and the rotation angles of their positions.
struct Tokens {
    torch::Tensor values;  ///< (B, N, C); undefined: no tokens
    torch::Tensor angles;  ///< (B, N, head_dim / 2)
};

/// Keys and values to which tokens of a block attend, (B, H, N, D) each.
struct KeysAndValues {
    torch::Tensor keys, values;
};

struct AnchorBlockOptions {
    std::int64_t dim = 0;
    std::int64_t num_heads = 1;
    std::int64_t mlp_ratio = 4;
    std::int64_t condition_dim = 0;  ///< 0: no condition
};

/// Which anchors the tokens of a branch attend to.
enum class AnchorsOf : std::uint8_t { Own, Other, All };

/// Selects from the branches' own keys and values those to which the tokens of each branch attend. A single branch
/// attends to its own anchors.
std::vector<KeysAndValues> attended_by_branches(const std::vector<KeysAndValues>& own, AnchorsOf anchors);

/// Scale, shift and gate of each half of a block, computed from the condition (the numbers of a case); without a
/// condition there is no modulation. Initially zero, so that a block is the identity.
class Modulation {
public:
    void add_to(torch::nn::Module& owner, std::int64_t condition_dim, std::int64_t dim, std::int64_t num_parts);

    /// The parts, each (B, 1, C); empty without modulation. @throws InvalidInput if the condition is missing, or given
    /// though the model has none.
    std::vector<torch::Tensor> parts(const torch::Tensor& condition);

private:
    torch::nn::Linear linear_{nullptr};
    std::int64_t num_parts_ = 0;
};

/// A transformer block whose tokens attend to anchors: x += attention(norm(x)), x += mlp(norm(x)). All branches share
/// its weights.
class AnchorBlockImpl : public torch::nn::Module {
public:
    explicit AnchorBlockImpl(const AnchorBlockOptions& options);

    /// Updates the anchors of all branches, which attend to each other according to `anchors`.
    /// @return   the keys and values of each branch's anchors, for its queries and those of other branches
    std::vector<KeysAndValues> forward(std::vector<Tokens>& branches, AnchorsOf anchors,
                                       const torch::Tensor& condition);

    /// Computes new values of queries, to which no token attends.
    torch::Tensor forward(const Tokens& queries, const KeysAndValues& seen, const torch::Tensor& condition);

private:
    torch::Tensor after_attention(const torch::Tensor& x, const torch::Tensor& queries, const KeysAndValues& seen,
                                  const std::vector<torch::Tensor>& modulation);

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

    KeysAndValues keys_of(const Tokens& others, const torch::Tensor& condition);

    /// Computes new values of tokens that attend to `seen`.
    torch::Tensor forward(const Tokens& tokens, const KeysAndValues& seen, const torch::Tensor& condition);

private:
    std::int64_t num_heads_;
    torch::nn::LayerNorm norm1q_{nullptr}, norm1kv_{nullptr}, norm2_{nullptr};
    torch::nn::Linear q_{nullptr}, kv_{nullptr}, proj_{nullptr};
    torch::nn::Sequential mlp_{nullptr};
    Modulation modulation_;
};
TORCH_MODULE(PerceiverBlock);

}  // namespace meshard
