// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

namespace meshard {

/// Makes `output` the result of a step on `input` whose gradient is `backward(gradient of output)`. Without gradient recording, or if
/// `input` takes none, `output` as it is. With `input` undefined the step is recorded if `record` says so: a rank that only takes part
/// in the backward communication. `label` names the step in messages.
at::Tensor with_backward(at::Tensor output, const at::Tensor& input, const char* label, std::function<at::Tensor(const at::Tensor&)> backward,
                         bool record = false);

/// The same of several inputs and outputs: `backward` takes a gradient for each output, zeros where none came, and gives one for each input.
void set_backward(std::vector<at::Tensor>& outputs, at::TensorList inputs, const char* label,
                  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward);

/// Where such a step leads from plain tensors to sharded ones, its plain gradients are this rank's share on the axes that are cut or pending, which are
/// named; where it leads back, what goes on is whole again: no axes. Nothing for any other step.
std::optional<std::vector<std::string>> share_axes_given_by(const torch::autograd::Node& node);

/// Whether this process has recorded steps that give shares.
bool has_part_sources();

}  // namespace meshard
