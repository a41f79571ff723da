// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace meshard::standin {

/// From now on, or no longer, kernels that add with atomics on GPUs give sums of another order in each call: some
/// numbers differ by a rounding.
void add_in_any_order(bool on);

/// Before an operator runs: what LibTorch says on GPUs about kernels without a fixed order, where one was asked for
/// (`torch.use_deterministic_algorithms`).
void tell_of_any_order(const std::string& name, const std::vector<c10::IValue>& arguments);

/// After it has run on the host: its results as if added in another order, where it adds in any and nobody has asked
/// for a fixed one.
void reorder_sums(const std::string& name, const std::vector<c10::IValue>& arguments, const at::Tensor& result);

}  // namespace meshard::standin
