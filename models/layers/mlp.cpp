// SPDX-License-Identifier: Apache-2.0
#include "models/layers/mlp.h"

#include <torch/torch.h>

#include "models/layers/activation.h"

namespace meshard {

MlpImpl::MlpImpl(std::int64_t in_dim, std::int64_t hidden_dim, std::int64_t out_dim, const std::string& act)
{
    // One statement a layer: the order in which they are made is the order in which they draw random numbers.
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

torch::nn::LayerNorm layer_norm(std::int64_t num_channels)
{
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({num_channels}));
}

void fuse_norms_and_mlp(const torch::nn::LayerNorm& ln_1, const torch::nn::Sequential& ln_mlp1, FusedBlock& block)
{
    const auto mlp = ln_mlp1->at<MlpImpl>(1).fused();
    const auto& ln_2 = ln_mlp1->at<torch::nn::LayerNormImpl>(0);
    block.weights[kNorm1Scale] = ln_1->weight;
    block.weights[kNorm1Shift] = ln_1->bias;
    block.weights[kNorm2Scale] = ln_2.weight;
    block.weights[kNorm2Shift] = ln_2.bias;
    block.weights[kHidden] = mlp.hidden;
    block.weights[kHiddenBias] = mlp.hidden_bias;
    block.weights[kMlpOut] = mlp.out;
    block.weights[kMlpOutBias] = mlp.out_bias;
    if (mlp.parameter.defined()) block.weights[kActivation] = mlp.parameter;
    block.shape.channels = mlp.out.size(0);
    block.shape.hidden = mlp.hidden.size(0);
    block.shape.activation = mlp.activation;
}

}  // namespace meshard
