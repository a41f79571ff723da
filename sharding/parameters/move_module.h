// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace meshard {

/// Moves a tensor to a device, in place: all handles on it see the moved tensor. Autograd must not have recorded it
/// yet.
void move_in_place(const at::Tensor& tensor, const at::Device& device);

/// Moves the parameters and buffers of a module to a device, in place; call it before `replicate`, `fully_shard` and
/// making the optimiser. Unlike `torch::nn::Module::to` it supports accelerators that were registered with LibTorch by
/// name.
void move_module(const torch::nn::Module& module, const at::Device& device);

}  // namespace meshard
