// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/checkpoints/safetensors.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace meshard {

/// Nothing for a type that the format does not have.
std::optional<ArrayType> array_type_of(at::ScalarType type);

/// A tensor as an entry of a safetensors file, of its own type; on the CPU and contiguous, copied only where it is
/// neither.
/// @throws InvalidInput for a type that the format does not have.
NamedArray to_named_array(std::string name, const at::Tensor& tensor);

/// The array's memory, which must live on and is not to be written. @throws IoError for a type that LibTorch does not
/// have.
at::Tensor view_of(const NamedArray& array);

/// A copy. @throws IoError for a type that LibTorch does not have.
at::Tensor to_tensor(const NamedArray& array);

}  // namespace meshard
