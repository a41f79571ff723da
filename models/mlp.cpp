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
    layers_->push_back(torch::nn::Linear(hidden_dim, out_dim));
    register_module("layers", layers_);
}

}  // namespace meshard
