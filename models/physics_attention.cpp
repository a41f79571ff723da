// SPDX-License-Identifier: Apache-2.0
#include "models/physics_attention.h"

#include <cmath>

#include <torch/torch.h>

#include "ops/slice_ops.h"

namespace meshard {
namespace {

constexpr double kWeightEpsilon = 1e-2;
constexpr double kMinTemperature = 0.5;
constexpr double kMaxTemperature = 5.0;

}  // namespace

PhysicsAttentionImpl::PhysicsAttentionImpl(std::int64_t dim, std::int64_t num_heads, std::int64_t num_slices, double dropout)
    : num_heads_(num_heads)
{
    const auto head_dim = dim / num_heads;
    temperature_ = register_parameter("temperature", torch::full({1, 1, num_heads, 1}, 0.5));
    in_project_slice_ = register_module("in_project_slice", torch::nn::Linear(head_dim, num_slices));
    torch::randn({num_slices, head_dim});   // the reference draws an orthogonal matrix here and overwrites it later
    qkv_project_ = register_module("qkv_project", torch::nn::Linear(torch::nn::LinearOptions(head_dim, 3 * head_dim).bias(false)));
    out_linear_ = register_module("out_linear", torch::nn::Linear(dim, dim));
    in_project_x_ = register_module("in_project_x", torch::nn::Linear(dim, dim));
    in_project_fx_ = register_module("in_project_fx", torch::nn::Linear(dim, dim));
    if (dropout > 0) out_dropout_ = register_module("out_dropout", torch::nn::Dropout(dropout));
}

torch::Tensor PhysicsAttentionImpl::forward(const torch::Tensor& x)
{
    const auto batch = x.size(0);
    const auto num_points = x.size(1);
    const auto head_dim = x.size(2) / num_heads_;
    const auto x_mid = in_project_x_(x).view({batch, num_points, num_heads_, head_dim});    // (B, N, H, D)
    const auto fx_mid = in_project_fx_(x).view({batch, num_points, num_heads_, head_dim});  // (B, N, H, D)

    // To slices (eq. 1 and 2). The softmax runs over the slices of each point.
    const auto sharpness = temperature_.clamp(kMinTemperature, kMaxTemperature).reciprocal();
    const auto weights = torch::softmax(in_project_slice_(x_mid) * sharpness, -1);          // (B, N, H, S)
    const auto tokens = slice_tokens(weights, fx_mid, kWeightEpsilon);                      // (B, H, S, D)

    // Among slices (eq. 3).
    const auto qkv = qkv_project_(tokens).chunk(3, -1);
    const auto logits = torch::matmul(qkv[0], qkv[1].transpose(-2, -1)) / std::sqrt(static_cast<double>(head_dim));
    const auto attended = torch::matmul(torch::softmax(logits, -1), qkv[2]);                // (B, H, S, D)

    // Back to the points (eq. 4).
    const auto y = deslice_tokens(weights, attended).reshape({batch, num_points, num_heads_ * head_dim});
    const auto out = out_linear_(y);                                                        // (B, N, C)
    return out_dropout_ ? out_dropout_(out) : out;
}

}  // namespace meshard
