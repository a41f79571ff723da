// SPDX-License-Identifier: Apache-2.0
// What LibTorch itself says of a call on the whole tensors, asked of meta tensors, which have shapes and no memory.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace meshard {

struct OperatorFacts;

/// The results on meta tensors of the arguments' shapes and strides; nothing if the operator does not run on these.
std::optional<std::vector<at::Tensor>> meta_results(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments);

/// Throws LibTorch's own error if shapes, types or numbers of the whole tensors do not fit together. The parts of a
/// rank may fit all the same, and then the result is wrong, or on one rank alone, and then the others wait. Every rank
/// throws alike, before any message. The forms of calls that were found right are remembered.
/// @throws c10::Error
void check_as_whole(const OperatorFacts& facts, c10::ArrayRef<c10::IValue> arguments);

}  // namespace meshard
