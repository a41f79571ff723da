// SPDX-License-Identifier: Apache-2.0
#include "io/base64.h"

#include <array>
#include <cstdint>

namespace meshard {

namespace {

constexpr std::uint8_t bad = 255;

constexpr std::array<std::uint8_t, 256> make_table()
{
    std::array<std::uint8_t, 256> table{};
    table.fill(bad);
    constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::size_t i = 0; i < alphabet.size(); ++i)
        table[static_cast<unsigned char>(alphabet[i])] = static_cast<std::uint8_t>(i);
    return table;
}

constexpr auto table = make_table();

}  // namespace

std::optional<std::vector<std::byte>> decode_base64(std::string_view text)
{
    if (text.size() % 4 != 0) return std::nullopt;
    std::size_t padding = 0;
    while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;

    std::vector<std::byte> bytes(text.size() / 4 * 3);
    for (std::size_t group = 0; group < text.size() / 4; ++group) {
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 4; ++i) {
            const std::size_t at = 4 * group + i;
            const std::uint8_t six = at >= text.size() - padding ? 0 : table[static_cast<unsigned char>(text[at])];
            if (six == bad) return std::nullopt;
            bits = bits << 6 | six;
        }
        for (std::size_t i = 0; i < 3; ++i) bytes[3 * group + i] = static_cast<std::byte>(bits >> (16 - 8 * i));
    }
    bytes.resize(bytes.size() - padding);
    return bytes;
}

}  // namespace meshard
