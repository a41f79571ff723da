// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/flare_attention.h"

#include "ops/slices/latent_mixing.h"

namespace meshard {

void FlareMixing::add_queries(torch::nn::Module& owner, std::int64_t num_heads, std::int64_t num_queries,
                              std::int64_t head_dim)
{
    q_global_ = owner.register_parameter("q_global", torch::randn({1, num_heads, num_queries, head_dim}));
}

void FlareMixing::add_keys_and_values(torch::nn::Module& owner, std::int64_t head_dim)
{
    self_k_ = owner.register_module("self_k", torch::nn::Linear(head_dim, head_dim));
    self_v_ = owner.register_module("self_v", torch::nn::Linear(head_dim, head_dim));
}

torch::Tensor FlareMixing::mix(const torch::Tensor& x_mid)
{
    return mix_through_latents(self_k_(x_mid), q_global_, self_v_(x_mid));
}

FlareAttentionImpl::FlareAttentionImpl(const FlareAttentionOptions& options) : num_heads_(options.num_heads)
{
    const auto inner = options.num_heads * options.head_dim;
    mixing_.add_queries(*this, options.num_heads, options.num_queries, options.head_dim);
    in_project_x_ = register_module("in_project_x", torch::nn::Linear(options.dim, inner));
    mixing_.add_keys_and_values(*this, options.head_dim);
    out_linear_ = register_module("out_linear", torch::nn::Linear(inner, options.dim));
    if (options.dropout > 0) out_dropout_ = register_module("out_dropout", RowDropout(options.dropout, options.noise));
}

torch::Tensor FlareAttentionImpl::forward(const torch::Tensor& x)
{
    const auto projected = in_project_x_(x);
    const auto x_mid =
        projected.view({x.size(0), x.size(1), num_heads_, projected.size(2) / num_heads_});  // (B, N, H, D)
    const auto out = out_linear_(mixing_.mix(x_mid).flatten(2));                             // (B, N, C)
    return out_dropout_ ? out_dropout_(out) : out;
}

}  // namespace meshard
