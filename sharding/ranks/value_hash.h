// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace meshard {

/// Adds a word to a hash. For a given start every step is invertible in the word: two runs that differ in one word never meet again.
std::uint64_t mix(std::uint64_t hash, std::uint64_t word);

/// Of the bytes of a tensor's values, by which ranks compare what they hold. Not for storage: it may change between versions.
std::int64_t hash_of_values(const at::Tensor& tensor);

}  // namespace meshard
