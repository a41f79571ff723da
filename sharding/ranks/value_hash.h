// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Adds a word to a hash. For a fixed hash the map is invertible in the word, so that sequences which differ in exactly
/// one word have different hashes.
std::uint64_t mix(std::uint64_t hash, std::uint64_t word);

/// Hash of the bytes of a tensor's values, by which ranks compare tensors. Not for storage: it may change between
/// versions.
std::int64_t hash_of_values(const at::Tensor& tensor);

}  // namespace meshard
