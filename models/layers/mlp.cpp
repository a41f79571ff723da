// SPDX-License-Identifier: Apache-2.0
#include "models/layers/mlp.h"

#include "models/layers/activation.h"

#include <torch/nn/modules/linear.h>

namespace meshard {

MlpImpl::MlpImpl(std::int64_t in_dim, std::int64_t hidden_dim, std::int64_t out_dim, const std::string& act)
{
    // One statement for each layer: layers draw random numbers in the order in which they are made.
    layers_->push_back(torch::nn::Linear(in_dim, hidden_dim));
    layers_->push_back(Activation(act));
    layers_->push_back(torch::nn::Linear(hidden_dim, out_dim));
    register_module("layers", layers_);
}

FusedMlp MlpImpl::fused() const
{
    const auto &hidden = layers_->at<torch::nn::LinearImpl>(0), &out = layers_->at<torch::nn::LinearImpl>(2);
    const auto& activation = layers_->at<ActivationImpl>(1);
    FusedMlp mlp{hidden.weight, hidden.bias, out.weight, out.bias, {}};
    if (activation.function().name != "gelu") mlp.activation = &activation.function();
    if (activation.parameter().defined()) mlp.parameter = activation.parameter().view({1});
    return mlp;
}

torch::Tensor MlpImpl::on_points(const torch::Tensor& points, const torch::Tensor& offset)
{
    const auto mlp = fused();
    const bool has_kernels = points.is_cpu() || !mlp.activation;
    if (has_kernels && !fusion_obstacle(points, mlp)) return fused_mlp(points, mlp, offset);
    const auto result = forward(points);
    return offset.defined() ? result + offset.unsqueeze(1) : result;
}

torch::nn::LayerNorm layer_norm(std::int64_t num_channels)
{
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({num_channels}));
}

void fuse_norms_and_mlp(const torch::nn::LayerNorm& ln_1, const torch::nn::Sequential& ln_mlp1, FusedBlock& block)
{
    const auto mlp = ln_mlp1->at<MlpImpl>(1).fused();
    const auto& ln_2 = ln_mlp1->at<torch::nn::LayerNormImpl>(0);
    auto& weights = block.weights;
    weights.norm1 = {ln_1->weight, ln_1->bias};
    weights.norm2 = {ln_2.weight, ln_2.bias};
    weights.hidden = {mlp.hidden, mlp.hidden_bias};
    weights.mlp_out = {mlp.out, mlp.out_bias};
    weights.activation = mlp.parameter;
    block.shape.channels = mlp.out.size(0);
    block.shape.hidden = mlp.hidden.size(0);
    block.shape.activation = mlp.activation;
}

}  // namespace meshard
