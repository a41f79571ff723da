// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

namespace meshard {

/// AdamW in one operator for all parameters of a device and type, in place of about nine a parameter: on a GPU a few launches a step, and nothing that the host
/// waits for. State, options and what is saved of them are those of torch::optim::AdamW, so that either goes on where the other stopped; numbers differ by
/// rounding. Without amsgrad, for which it does what its base does.
class FusedAdamW : public torch::optim::AdamW {
public:
    using torch::optim::AdamW::AdamW;

    at::Tensor step(LossClosure closure = nullptr) override;
};

/// FusedAdamW for parameters that lie on a device, torch::optim::AdamW, whose bits earlier runs have, for those on the CPU.
std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<at::Tensor> parameters, const torch::optim::AdamWOptions& options);

/// The same for groups with options of their own. @param defaults   of groups that have none
std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<torch::optim::OptimizerParamGroup> groups, const torch::optim::AdamWOptions& defaults);

}  // namespace meshard
