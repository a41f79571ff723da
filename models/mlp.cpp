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

}  // namespace meshard
