// SPDX-License-Identifier: Apache-2.0
#include "models/graph/anchor_attention.h"

#include "partition/error.h"

#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>

namespace meshard {
namespace {

constexpr double kLongestWave = 10000.0;
constexpr double kNormEpsilon = 1e-6;
constexpr std::int64_t kAxes = 3;

/// Number of channels for one axis, half of them sines and half cosines; the rest of `num_channels` are zero.
std::int64_t channels_of_axis(std::int64_t num_channels)
{
    const auto share = num_channels / kAxes;
    return share - share % 2;
}

/// (..., 3) to (..., 3, channels / 2)
torch::Tensor phases(const torch::Tensor& positions, std::int64_t num_channels)
{
    const auto channels = static_cast<double>(num_channels);
    const auto frequencies =
        torch::pow(kLongestWave, -torch::arange(0, num_channels, 2, torch::kFloat) / channels).to(positions.options());
    return positions.unsqueeze(-1) * frequencies;
}

torch::Tensor with_zeros(const torch::Tensor& x, std::int64_t num_channels)
{
    return x.size(-1) == num_channels ? x : torch::constant_pad_nd(x, {0, num_channels - x.size(-1)});
}

/// Rotates consecutive pairs of channels: (B, H, N, D) by (B, N, D / 2).
torch::Tensor turned(const torch::Tensor& x, const torch::Tensor& angles)
{
    const auto pairs = x.unflatten(-1, {x.size(-1) / 2, 2});
    const auto a = pairs.select(-1, 0), b = pairs.select(-1, 1);
    const auto cosines = torch::cos(angles).unsqueeze(1), sines = torch::sin(angles).unsqueeze(1);
    return torch::stack({a * cosines - b * sines, a * sines + b * cosines}, -1).flatten(-2);
}

torch::nn::LayerNorm norm(const AnchorBlockOptions& options)
{
    return torch::nn::LayerNorm(
        torch::nn::LayerNormOptions({options.dim}).eps(kNormEpsilon).elementwise_affine(options.condition_dim == 0));
}

torch::nn::Sequential up_act_down(const AnchorBlockOptions& options)
{
    torch::nn::Sequential mlp;
    mlp->push_back("fc1", torch::nn::Linear(options.dim, options.mlp_ratio * options.dim));
    mlp->push_back("act", torch::nn::GELU());
    mlp->push_back("fc2", torch::nn::Linear(options.mlp_ratio * options.dim, options.dim));
    return mlp;
}

/// (B, N, C) to (B, H, N, D)
torch::Tensor heads_of(const torch::Tensor& x, std::int64_t num_heads)
{
    return x.unflatten(-1, {num_heads, x.size(-1) / num_heads}).transpose(1, 2);
}

torch::Tensor joined(const torch::Tensor& heads)
{
    return heads.transpose(1, 2).flatten(2);
}

torch::Tensor shifted(const torch::Tensor& x, const std::vector<torch::Tensor>& parts, std::size_t scale)
{
    return parts.empty() ? x : x * (1 + parts[scale]) + parts[scale + 1];
}

torch::Tensor gated(const torch::Tensor& x, const std::vector<torch::Tensor>& parts, std::size_t gate)
{
    return parts.empty() ? x : x * parts[gate];
}

}  // namespace

torch::Tensor position_embedding(const torch::Tensor& positions, std::int64_t num_channels)
{
    const auto angles = phases(positions, channels_of_axis(num_channels));
    return with_zeros(torch::cat({torch::sin(angles), torch::cos(angles)}, -1).flatten(-2), num_channels);
}

torch::Tensor rotary_angles(const torch::Tensor& positions, std::int64_t head_dim)
{
    return with_zeros(phases(positions, channels_of_axis(head_dim)).flatten(-2), head_dim / 2);
}

void Modulation::add_to(torch::nn::Module& owner, std::int64_t condition_dim, std::int64_t dim, std::int64_t num_parts)
{
    if (condition_dim == 0) return;
    num_parts_ = num_parts;
    linear_ = owner.register_module("modulation", torch::nn::Linear(condition_dim, num_parts * dim));
}

std::vector<torch::Tensor> Modulation::parts(const torch::Tensor& condition)
{
    if (condition.defined() != !linear_.is_empty()) {
        throw InvalidInput(linear_.is_empty() ? "AB-UPT: a condition was given, and the model takes none."
                                              : "AB-UPT: the condition is missing; the model was made to take it.");
    }
    if (linear_.is_empty()) return {};
    return linear_(condition).unsqueeze(1).chunk(num_parts_, -1);
}

AnchorBlockImpl::AnchorBlockImpl(const AnchorBlockOptions& options) : num_heads_(options.num_heads)
{
    modulation_.add_to(*this, options.condition_dim, options.dim, 6);
    norm1_ = register_module("norm1", norm(options));
    auto attention = register_module("attention_block", std::make_shared<torch::nn::Module>());
    qkv_ = attention->register_module("qkv", torch::nn::Linear(options.dim, 3 * options.dim));
    proj_ = attention->register_module("proj", torch::nn::Linear(options.dim, options.dim));
    norm2_ = register_module("norm2", norm(options));
    mlp_ = register_module("mlp", up_act_down(options));
}

std::vector<KeysAndValues> attended_by_branches(const std::vector<KeysAndValues>& own, AnchorsOf anchors)
{
    if (own.size() == 1 || anchors == AnchorsOf::Own) return own;
    if (anchors == AnchorsOf::Other) return {own.rbegin(), own.rend()};
    std::vector<torch::Tensor> keys, values;
    for (const auto& branch : own) {
        keys.push_back(branch.keys);
        values.push_back(branch.values);
    }
    return std::vector<KeysAndValues>(own.size(), {torch::cat(keys, 2), torch::cat(values, 2)});
}

torch::Tensor AnchorBlockImpl::after_attention(const torch::Tensor& x, const torch::Tensor& queries,
                                               const KeysAndValues& seen, const std::vector<torch::Tensor>& modulation)
{
    const auto attended =
        x + gated(proj_(joined(torch::scaled_dot_product_attention(queries, seen.keys, seen.values))), modulation, 2);
    return attended + gated(mlp_->forward(shifted(norm2_(attended), modulation, 3)), modulation, 5);
}

std::vector<KeysAndValues> AnchorBlockImpl::forward(std::vector<Tokens>& branches, AnchorsOf anchors,
                                                    const torch::Tensor& condition)
{
    const auto modulation = modulation_.parts(condition);
    std::vector<torch::Tensor> queries;
    std::vector<KeysAndValues> own;
    for (const auto& branch : branches) {
        const auto parts = qkv_(shifted(norm1_(branch.values), modulation, 0)).chunk(3, -1);
        queries.push_back(turned(heads_of(parts[0], num_heads_), branch.angles));
        own.push_back({turned(heads_of(parts[1], num_heads_), branch.angles), heads_of(parts[2], num_heads_)});
    }
    const auto seen = attended_by_branches(own, anchors);
    for (std::size_t i = 0; i < branches.size(); ++i)
        branches[i].values = after_attention(branches[i].values, queries[i], seen[i], modulation);
    return own;
}

torch::Tensor AnchorBlockImpl::forward(const Tokens& queries, const KeysAndValues& seen, const torch::Tensor& condition)
{
    const auto modulation = modulation_.parts(condition);
    const auto dim = proj_->options.in_features();
    const auto projected = torch::nn::functional::linear(shifted(norm1_(queries.values), modulation, 0),
                                                         qkv_->weight.narrow(0, 0, dim), qkv_->bias.narrow(0, 0, dim));
    return after_attention(queries.values, turned(heads_of(projected, num_heads_), queries.angles), seen, modulation);
}

PerceiverBlockImpl::PerceiverBlockImpl(const AnchorBlockOptions& options) : num_heads_(options.num_heads)
{
    modulation_.add_to(*this, options.condition_dim, options.dim, 8);
    norm1q_ = register_module("norm1q", norm(options));
    norm1kv_ = register_module("norm1kv", norm(options));
    auto attention = register_module("attn", std::make_shared<torch::nn::Module>());
    q_ = attention->register_module("q", torch::nn::Linear(options.dim, options.dim));
    kv_ = attention->register_module("kv", torch::nn::Linear(options.dim, 2 * options.dim));
    proj_ = attention->register_module("proj", torch::nn::Linear(options.dim, options.dim));
    norm2_ = register_module("norm2", norm(options));
    mlp_ = register_module("mlp", up_act_down(options));
}

KeysAndValues PerceiverBlockImpl::keys_of(const Tokens& others, const torch::Tensor& condition)
{
    const auto modulation = modulation_.parts(condition);
    const auto parts = kv_(shifted(norm1kv_(others.values), modulation, 2)).chunk(2, -1);
    return {turned(heads_of(parts[0], num_heads_), others.angles), heads_of(parts[1], num_heads_)};
}

torch::Tensor PerceiverBlockImpl::forward(const Tokens& tokens, const KeysAndValues& seen,
                                          const torch::Tensor& condition)
{
    const auto modulation = modulation_.parts(condition);
    const auto queries =
        turned(heads_of(q_(shifted(norm1q_(tokens.values), modulation, 0)), num_heads_), tokens.angles);
    const auto attended =
        tokens.values +
        gated(proj_(joined(torch::scaled_dot_product_attention(queries, seen.keys, seen.values))), modulation, 4);
    return attended + gated(mlp_->forward(shifted(norm2_(attended), modulation, 5)), modulation, 7);
}

}  // namespace meshard
