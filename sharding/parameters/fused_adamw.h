// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

namespace meshard {

/// AdamW with one fused operator for all parameters of a device and type instead of about nine for each parameter: a
/// few launches a step on a GPU, and the host does not wait. State, options and checkpoints are those of
/// torch::optim::AdamW, so that either can continue the other's run; results differ by rounding. With amsgrad the base
/// class computes the step.
class FusedAdamW : public torch::optim::AdamW {
public:
    using torch::optim::AdamW::AdamW;

    at::Tensor step(LossClosure closure = nullptr) override;
};

/// FusedAdamW for parameters on a device. On the CPU torch::optim::AdamW, which keeps the bits of earlier runs.
std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<at::Tensor> parameters,
                                                const torch::optim::AdamWOptions& options);

/// `make_adamw` for groups with their own options. @param defaults   options of groups that have none
std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                const torch::optim::AdamWOptions& defaults);

}  // namespace meshard
