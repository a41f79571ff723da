// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

namespace meshard::test {

using NamedTensors = std::map<std::string, at::Tensor>;

/// Copies of all arrays of a safetensors file.
NamedTensors read_tensors(const std::filesystem::path& path);

}  // namespace meshard::test
