// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/physics_attention.h"

#include "ops/slices/slice_ops.h"

#include <cmath>

namespace meshard {

torch::Tensor attend_among_slices(const torch::Tensor& tokens, torch::nn::Linear& qkv)
{
    return attend_among_slices(tokens, qkv->weight);
}

torch::Tensor attend_among_slices(const torch::Tensor& tokens, const torch::Tensor& qkv_weight)
{
    const auto parts = torch::linear(tokens, qkv_weight).chunk(3, -1);
    const auto logits =
        torch::matmul(parts[0], parts[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(tokens.size(-1)));
    return torch::matmul(torch::softmax(logits, -1), parts[2]);
}

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
    const auto [weights, tokens] = slices_.slice(x, is_training());   // (B, N, H, S), (B, H, S, D)
    const auto attended = attend_among_slices(tokens, qkv_project_);  // (B, H, S, D)

    // Deslice (eq. 4), and concatenate the heads.
    const auto out = out_linear_(deslice_tokens(weights, attended).flatten(2));  // (B, N, C)
    return out_dropout_ ? out_dropout_(out) : out;
}

const char* PhysicsAttentionImpl::fuse_into(FusedBlock& block) const
{
    if (out_dropout_ && is_training()) return "it has dropout in training";
    block.weights.out = {out_linear_->weight, out_linear_->bias};
    block.attend = [](const torch::Tensor& tokens, const std::vector<torch::Tensor>& weights) {
        return attend_among_slices(tokens, weights[0]);
    };
    block.attend_weights = {qkv_project_->weight};
    return slices_.fuse_into(block, is_training());
}

}  // namespace meshard
