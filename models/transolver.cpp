// SPDX-License-Identifier: Apache-2.0
#include "models/transolver.h"

#include <cmath>
#include <sstream>

#include <torch/torch.h>

#include "partition/error.h"

namespace meshard {
namespace {

constexpr double kWeightStd = 0.02;
constexpr double kLongestPeriod = 10000.0;

torch::nn::LayerNorm layer_norm(std::int64_t num_channels)
{
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({num_channels}));
}

void require_shape(const char* name, const torch::Tensor& tensor, std::int64_t num_channels)
{
    if (tensor.defined() && tensor.dim() == 3 && tensor.size(2) == num_channels) return;
    std::ostringstream message;
    message << "Transolver: " << name << " must be (batch, points, " << num_channels << "), and ";
    if (tensor.defined()) message << "has the shape " << tensor.sizes() << ".";
    else message << "is missing.";
    throw InvalidInput(message.str());
}

}  // namespace

TransolverBlockImpl::TransolverBlockImpl(const TransolverOptions& options, bool is_last)
{
    const auto num_channels = options.n_hidden;
    ln_1_ = register_module("ln_1", layer_norm(num_channels));
    attention_ = register_module("Attn", PhysicsAttention(num_channels, options.n_head, options.slice_num, options.dropout));
    ln_mlp1_ = register_module("ln_mlp1", torch::nn::Sequential(layer_norm(num_channels),
                                                                Mlp(num_channels, options.mlp_ratio * num_channels, num_channels, options.act)));
    if (is_last) {
        ln_mlp2_ = register_module("ln_mlp2", torch::nn::Sequential(layer_norm(num_channels),
                                                                    torch::nn::Linear(num_channels, options.out_dim)));
    }
}

torch::Tensor TransolverBlockImpl::forward(torch::Tensor x)
{
    x = x + attention_(ln_1_(x));
    x = x + ln_mlp1_->forward(x);
    return ln_mlp2_ ? ln_mlp2_->forward(x) : x;
}

TimeEmbeddingImpl::TimeEmbeddingImpl(std::int64_t num_channels)
{
    const auto half = num_channels / 2;
    const auto exponents = torch::arange(half, torch::kFloat32) / static_cast<double>(half);
    freqs_ = register_buffer("freqs", torch::exp(exponents * -std::log(kLongestPeriod)));
}

torch::Tensor TimeEmbeddingImpl::forward(const torch::Tensor& time)
{
    const auto angles = time.unsqueeze(1) * freqs_.unsqueeze(0);   // (B, C/2)
    return torch::cat({torch::cos(angles), torch::sin(angles)}, 1);
}

TransolverImpl::TransolverImpl(TransolverOptions options) : options_(std::move(options))
{
    options_.validate();
    const auto num_channels = options_.n_hidden;
    preprocess_ = register_module("preprocess", Mlp(options_.functional_dim + options_.embedding_dim, 2 * num_channels, num_channels,
                                                    options_.act));
    if (options_.time_input) {
        time_embed_ = register_module("time_embed", TimeEmbedding(num_channels));
        time_fc_ = register_module("time_fc", torch::nn::Sequential());
        time_fc_->push_back(torch::nn::Linear(num_channels, num_channels));
        time_fc_->push_back(torch::nn::SiLU());
        time_fc_->push_back(torch::nn::Linear(num_channels, num_channels));
    }
    for (std::int64_t i = 0; i < options_.n_layers; ++i) blocks_->push_back(TransolverBlock(options_, i + 1 == options_.n_layers));
    register_module("blocks", blocks_);

    torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false)) {
        const auto* linear = module->as<torch::nn::Linear>();
        if (!linear) continue;
        linear->weight.normal_(0.0, kWeightStd);
        if (linear->bias.defined()) linear->bias.zero_();
    }
}

torch::Tensor TransolverImpl::forward(const torch::Tensor& fx, const torch::Tensor& embedding, const torch::Tensor& time)
{
    require_shape("fx", fx, options_.functional_dim);
    require_shape("embedding", embedding, options_.embedding_dim);
    if (time.defined() != options_.time_input) {
        throw InvalidInput(options_.time_input ? "Transolver: the model has time_input, and no time was given."
                                               : "Transolver: a time was given, and the model has no time_input.");
    }

    auto x = preprocess_(torch::cat({embedding, fx}, -1));                           // (B, N, C)
    if (time.defined()) x = x + time_fc_->forward(time_embed_(time)).unsqueeze(1);
    for (const auto& block : *blocks_) x = block->as<TransolverBlock>()->forward(x);
    return x;
}

}  // namespace meshard
