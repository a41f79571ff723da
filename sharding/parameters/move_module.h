// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace meshard {

/// Brings a tensor to a device, in place: whoever holds it sees it there. It must not have been recorded by autograd yet.
void move_in_place(const at::Tensor& tensor, const at::Device& device);

/// Brings the parameters and buffers of a module to a device, in place: before `replicate`, `fully_shard` and the optimiser. Unlike `torch::nn::Module::to` it
/// knows accelerators that are registered with LibTorch by name, too.
void move_module(const torch::nn::Module& module, const at::Device& device);

}  // namespace meshard
