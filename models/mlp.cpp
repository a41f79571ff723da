// SPDX-License-Identifier: Apache-2.0
#include "models/mlp.h"

#include <torch/torch.h>

#include "models/activation.h"

namespace meshard {

MlpImpl::MlpImpl(std::int64_t in_dim, std::int64_t hidden_dim, std::int64_t out_dim, const std::string& act)
{
    // One statement a layer: the order in which they are made is the order in which they draw random numbers.
    layers_->push_back(torch::nn::Linear(in_dim, hidden_dim));
    layers_->push_back(Activation(act));
    is_gelu_ = layers_->at<ActivationImpl>(1).is_gelu();
    layers_->push_back(torch::nn::Linear(hidden_dim, out_dim));
    register_module("layers", layers_);
}

std::optional<FusedMlp> MlpImpl::fused() const
{
    if (!is_gelu_) return std::nullopt;
    const auto &hidden = layers_->at<torch::nn::LinearImpl>(0), &out = layers_->at<torch::nn::LinearImpl>(2);
    return FusedMlp{hidden.weight, hidden.bias, out.weight, out.bias};
}

bool fuse_norms_and_mlp(const torch::nn::LayerNorm& ln_1, const torch::nn::Sequential& ln_mlp1, FusedBlock& block)
{
    const auto mlp = ln_mlp1->at<MlpImpl>(1).fused();
    if (!mlp) return false;
    const auto& ln_2 = ln_mlp1->at<torch::nn::LayerNormImpl>(0);
    block.weights[kNorm1Scale] = ln_1->weight;
    block.weights[kNorm1Shift] = ln_1->bias;
    block.weights[kNorm2Scale] = ln_2.weight;
    block.weights[kNorm2Shift] = ln_2.bias;
    block.weights[kHidden] = mlp->hidden;
    block.weights[kHiddenBias] = mlp->hidden_bias;
    block.weights[kMlpOut] = mlp->out;
    block.weights[kMlpOutBias] = mlp->out_bias;
    block.shape.channels = mlp->out.size(0);
    block.shape.hidden = mlp->hidden.size(0);
    return true;
}

}  // namespace meshard
