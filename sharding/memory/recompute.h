// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace meshard {

using CheckpointFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Computes fn(inputs) without storing the tensors that its backward needs: backward calls `fn` again to compute them.
/// Saves memory at the cost of computation (Chen et al., "Training deep nets with sublinear memory cost", 2016).
///
/// For plain and sharded tensors. The second run has the same inputs, parameters, policies, autocast mode and type
/// (without its cache of cast weights) and random draws (of the CPU's default generator, and of the GPUs that hold
/// inputs) and calls the same collectives; every rank must therefore call its checkpoints in the same order, as it does
/// if all run the same model. Gradients reach inputs and parameters through the graph of the first run, so hooks fire
/// once. Checkpoints may be nested. `fn` must depend on its inputs and parameters only; other state that it changes
/// (running statistics) changes twice.
///
/// Without gradient recording this is fn(inputs). @throws InvalidInput in backward if the second run does not save the
/// same tensors as the first; Error if an input was written to in between.
std::vector<at::Tensor> checkpoint(const CheckpointFunction& fn, const std::vector<at::Tensor>& inputs);

/// `checkpoint` of a function of one tensor that returns one.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& fn, const at::Tensor& input);

}  // namespace meshard
