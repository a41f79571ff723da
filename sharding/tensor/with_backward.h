// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace meshard {

/// Records a step from `input` to `output` whose gradient is `backward(gradient of output)`; returns `output` with this
/// history. Returns `output` unchanged if gradients are not recorded or `input` requires none. With `input` undefined
/// the step is recorded if `record` is true, on a rank that only takes part in the communication of backward. `label`
/// names the step in messages.
at::Tensor with_backward(at::Tensor output, const at::Tensor& input, const char* label,
                         std::function<at::Tensor(const at::Tensor&)> backward, bool record = false);

/// `with_backward` for several inputs and outputs: `backward` gets a gradient for each output, zeros where there is
/// none, and returns one for each input.
void set_backward(std::vector<at::Tensor>& outputs, at::TensorList inputs, const char* label,
                  std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> backward);

/// For a step from plain to sharded tensors, returns its Shard and Partial axes, on which the plain gradients are this
/// rank's share (GradientOrigin); for a step from sharded to plain tensors no axes, since gradients are whole again.
/// Empty for any other step.
std::optional<std::vector<MeshAxis>> share_axes_given_by(const torch::autograd::Node& node);

/// Returns whether this process has recorded steps whose plain gradients are shares.
bool has_part_sources();

}  // namespace meshard
