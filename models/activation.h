// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace meshard {

/// An element-wise activation, chosen by name as in checkpoints' `act`; upper and lower case count as the same.
///
/// The constants are those of the reference: leaky_relu 0.1, threshold(1, 1), elu and celu 1; gelu is the exact erf form.
/// `prelu` has one parameter, `weight`; `capped_gelu` and `cappek_leaky_relu` (the reference's spelling) have a buffer, `cap`; the others
/// have none.
class ActivationImpl : public torch::nn::Module {
public:
    /// @throws InvalidInput that lists the names there are and the nearest one.
    explicit ActivationImpl(std::string_view name);

    torch::Tensor forward(const torch::Tensor& x);

    bool is_gelu() const;

private:
    using Function = torch::Tensor (*)(const torch::Tensor&);

    Function function_ = nullptr;   // null for prelu
    torch::Tensor slope_;           // of prelu
    torch::Tensor cap_;             // of the capped ones, else undefined
};
TORCH_MODULE(Activation);

/// Every name that `Activation` accepts.
std::vector<std::string> activation_names();

}  // namespace meshard
