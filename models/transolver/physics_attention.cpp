// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/physics_attention.h"

#include "ops/slices/slice_ops.h"
#include "ops/slices/token_attention.h"

namespace meshard {

PhysicsAttentionImpl::PhysicsAttentionImpl(SliceOptions options, double dropout) : slices_(options)
{
    // Layers are made in the reference's order, since each draws random numbers.
    const auto head_dim = options.head_dim, inner = options.num_heads * options.head_dim;
    slices_.add_temperature(*this);
    slices_.add_point_temperature(*this);
    slices_.add_slices(*this);
    slices_.make_slices_orthogonal();
    qkv_project_ =
        register_module("qkv_project", torch::nn::Linear(torch::nn::LinearOptions(head_dim, 3 * head_dim).bias(false)));
    out_linear_ = register_module("out_linear", torch::nn::Linear(inner, options.dim));
    slices_.add_projections(*this);
    if (dropout > 0) out_dropout_ = register_module("out_dropout", RowDropout(dropout, rows_of(options.noise)));
}

torch::Tensor PhysicsAttentionImpl::forward(const torch::Tensor& x)
{
    const auto [weights, tokens] = slices_.slice(x, is_training());  // (B, N, H, S), (B, H, S, D)
    const auto attended = token_attention_by_operators(tokens, qkv_project_->weight);

    // Deslice (eq. 4), and concatenate the heads.
    const auto out = out_linear_(deslice_tokens(weights, attended).flatten(2));  // (B, N, C)
    return out_dropout_ ? out_dropout_(out) : out;
}

const char* PhysicsAttentionImpl::fuse_into(FusedBlock& block) const
{
    if (out_dropout_ && is_training()) return "it has dropout in training";
    block.weights.out = {out_linear_->weight, out_linear_->bias};
    block.attend = [](const torch::Tensor& tokens, const std::vector<torch::Tensor>& weights) {
        return token_attention(tokens, weights[0]);
    };
    block.attend_weights = {qkv_project_->weight};
    return slices_.fuse_into(block, is_training());
}

}  // namespace meshard
