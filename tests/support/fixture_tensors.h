// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace meshard::test {

using NamedTensors = std::map<std::string, at::Tensor>;

/// Copies of all arrays of a safetensors file; the only result, `output.0`, under the name `output`.
NamedTensors read_tensors(const std::filesystem::path& path);

}  // namespace meshard::test
