// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

namespace meshard::test {

/// Gives a module the parameters of another of its kind.
inline void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to)
{
    const torch::NoGradGuard no_grad;
    const auto source = from.parameters();
    auto target = to.parameters();
    for (std::size_t i = 0; i < source.size(); ++i) target[i].copy_(source[i]);
}

}  // namespace meshard::test
