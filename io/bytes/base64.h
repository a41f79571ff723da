// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace meshard {

/// Number of characters of `num_bytes` bytes in base64, padding included.
constexpr std::size_t base64_length(std::size_t num_bytes)
{
    return (num_bytes + 2) / 3 * 4;
}

/// Decodes one base64 run: groups of four characters, `=` only at its end. None if a character is not valid.
std::optional<std::vector<std::byte>> decode_base64(std::string_view text);

/// Decodes into `out`, which must have room for three bytes for each group. Returns the number of bytes, or none.
std::optional<std::size_t> decode_base64(std::string_view text, std::byte* out);

}  // namespace meshard
