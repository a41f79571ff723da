// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/slices/activations.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// An element-wise activation of ops/slices/activations.h, chosen by its name in checkpoints' `act`, ignoring case.
///
/// `prelu` has one parameter, `weight`; `capped_gelu` and `cappek_leaky_relu` (the reference's spelling) have a buffer,
/// `cap`; the others have none.
class ActivationImpl : public torch::nn::Module {
public:
    /// @throws InvalidInput for an unknown name; the message lists the known names and the nearest one.
    explicit ActivationImpl(std::string_view name);

    torch::Tensor forward(const torch::Tensor& x);

    const ActivationFunction& function() const { return *function_; }
    /// Parameter of prelu and the capped activations, else undefined.
    const torch::Tensor& parameter() const { return parameter_; }

private:
    const ActivationFunction* function_ = nullptr;
    torch::Tensor parameter_;
};
TORCH_MODULE(Activation);

/// Every name that `Activation` accepts.
std::vector<std::string> activation_names();

}  // namespace meshard
