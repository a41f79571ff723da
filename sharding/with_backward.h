// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace meshard {

/// Makes `output` the result of a step on `input` whose gradient is `backward(gradient of output)`. Without gradient recording, or if
/// `input` takes none, `output` as it is. With `input` undefined the step is recorded if `record` says so: a rank that only takes part
/// in the backward communication. `label` names the step in messages.
at::Tensor with_backward(at::Tensor output, const at::Tensor& input, const char* label, std::function<at::Tensor(const at::Tensor&)> backward,
                         bool record = false);

/// The same of several inputs and outputs: `backward` takes a gradient for each output, zeros where none came, and gives one for each input.
void set_backward(std::vector<at::Tensor>& outputs, at::TensorList inputs, const char* label,
                  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward);

}  // namespace meshard
