// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace meshard {

/// Characters that `num_bytes` bytes take in base64, padding included.
constexpr std::size_t base64_length(std::size_t num_bytes) { return (num_bytes + 2) / 3 * 4; }

/// The bytes of one base64 run: groups of four characters, `=` only at its end. Nothing if a character does not belong.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text);

/// The same into `out`, which has room for three bytes a group. The number of bytes, or nothing.
std::optional<std::size_t> decode_base64(std::string_view text, std::byte* out);

}  // namespace meshard
