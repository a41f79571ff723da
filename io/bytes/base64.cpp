// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/base64.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace meshard {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the tables hold a group's three bytes as they lie in memory");

constexpr std::uint32_t bad = 0x80000000u;
using Table = std::array<std::uint32_t, 256>;

/// For each character and its position in a group of four: its bits in the three bytes.
constexpr std::array<Table, 4> make_tables()
{
    std::array<Table, 4> tables{};
    for (Table& table : tables) table.fill(bad);
    constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (std::uint32_t six = 0; six < 64; ++six) {
        const auto c = static_cast<unsigned char>(alphabet[six]);
        tables[0][c] = six << 2;
        tables[1][c] = six >> 4 | (six & 15) << 12;
        tables[2][c] = six >> 2 << 8 | (six & 3) << 22;
        tables[3][c] = six << 16;
    }
    return tables;
}

constexpr auto tables = make_tables();

std::uint32_t decode_group(const unsigned char* c)
{
    return tables[0][c[0]] | tables[1][c[1]] | tables[2][c[2]] | tables[3][c[3]];
}

}  // namespace

std::optional<std::size_t> decode_base64(std::string_view text, std::byte* out)
{
    if (text.size() % 4 != 0) return std::nullopt;
    if (text.empty()) return 0;
    const auto* c = reinterpret_cast<const unsigned char*>(text.data());
    const std::size_t num_groups = text.size() / 4;
    std::uint32_t seen = 0;
    for (std::size_t group = 0; group + 1 < num_groups; ++group, c += 4, out += 3) {
        const std::uint32_t bits = decode_group(c);
        seen |= bits;
        std::memcpy(out, &bits, 4);  // the next group overwrites the fourth byte
    }
    std::array<unsigned char, 4> last{c[0], c[1], c[2], c[3]};
    std::size_t padding = 0;
    while (padding < 2 && last[3 - padding] == '=') last[3 - padding++] = 'A';
    const std::uint32_t bits = decode_group(last.data());
    std::memcpy(out, &bits, 3 - padding);
    if (((seen | bits) & bad) != 0) return std::nullopt;
    return 3 * num_groups - padding;
}

std::optional<std::vector<std::byte>> decode_base64(std::string_view text)
{
    std::vector<std::byte> bytes(text.size() / 4 * 3);
    const auto size = decode_base64(text, bytes.data());
    if (!size) return std::nullopt;
    bytes.resize(*size);
    return bytes;
}

}  // namespace meshard
