// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace meshard {

using CheckpointFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// fn(inputs), without keeping what its backward needs: backward runs `fn` once more to find it. Memory for computation, after Chen et al.,
/// "Training deep nets with sublinear memory cost", 2016.
///
/// Plain and sharded tensors alike. The second run sees the same inputs, parameters, policies, autocast mode and type (without its cache
/// of cast weights) and random draws (of the CPU's default generator, and of the GPUs' that hold inputs) and calls the same collectives; every
/// rank must therefore come to it in the same order, which it does if all run the same model. Gradients reach inputs and parameters through the one graph of the first
/// run, so hooks fire once. Checkpoints may be nested. `fn` must be a function of its inputs and of parameters; what else it changes
/// (running statistics) changes twice.
///
/// Without gradient recording it is fn(inputs). @throws InvalidInput in backward if the second run does not save what the first one
/// did; Error if an input was written to in between.
std::vector<at::Tensor> checkpoint(const CheckpointFunction& fn, const std::vector<at::Tensor>& inputs);

/// The same for one tensor in and one out.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input);

}  // namespace meshard
