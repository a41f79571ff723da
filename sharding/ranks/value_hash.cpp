// SPDX-License-Identifier: Apache-2.0
#include "sharding/ranks/value_hash.h"

#include <ATen/ATen.h>

#include <bit>
#include <cstring>

namespace meshard {

std::uint64_t mix(std::uint64_t hash, std::uint64_t word)
{
    return std::rotl((hash ^ word) * 0x9e3779b97f4a7c15u, 29);
}

std::int64_t hash_of_values(const at::Tensor& tensor)
{
    const auto values = tensor.to(at::kCPU).contiguous();
    const auto* bytes = static_cast<const char*>(values.const_data_ptr());
    const auto size = values.nbytes();
    std::uint64_t hash = size;
    std::size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes + at, 8);
        hash = mix(hash, word);
    }
    std::uint64_t rest = 0;
    if (at < size) std::memcpy(&rest, bytes + at, size - at);
    return static_cast<std::int64_t>(mix(hash, rest));
}

}  // namespace meshard
