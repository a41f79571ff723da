// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/move_module.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

namespace meshard {

void move_in_place(const at::Tensor& tensor, const at::Device& device)
{
    if (tensor.device() == device) return;
    const at::NoGradGuard no_grad;
    const auto there = tensor.detach().to(device);
    // This is what `set_data` does, except that `set_data` refuses device types that are not LibTorch's own.
    tensor.unsafeGetTensorImpl()->shallow_copy_from(there.getIntrusivePtr());
}

void move_module(const torch::nn::Module& module, const at::Device& device)
{
    for (const auto& parameter : module.parameters()) move_in_place(parameter, device);
    for (const auto& buffer : module.buffers()) move_in_place(buffer, device);
}

}  // namespace meshard
