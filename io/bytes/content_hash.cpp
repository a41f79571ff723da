// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/content_hash.h"

#include "io/bytes/mapped_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace meshard {

namespace {

// The primes of the xxHash specification.
constexpr std::uint64_t prime1 = 0x9E3779B185EBCA87, prime2 = 0xC2B2AE3D27D4EB4F, prime3 = 0x165667B19E3779F9,
                        prime4 = 0x85EBCA77C2B2AE63, prime5 = 0x27D4EB2F165667C5;

template <class T>
T load(const std::byte* data)
{
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, data, sizeof value);
    return value;
}

std::uint64_t round(std::uint64_t accumulator, std::uint64_t lane)
{
    return std::rotl(accumulator + lane * prime2, 31) * prime1;
}

}  // namespace

namespace {

/// `pause` is called repeatedly, so that the work can be interrupted.
template <class F>
std::uint64_t hash_of(std::span<const std::byte> bytes, F&& pause)
{
    const std::byte* at = bytes.data();
    std::size_t left = bytes.size();
    std::uint64_t hash = prime5;
    if (left >= 32) {
        std::array<std::uint64_t, 4> lanes{prime1 + prime2, prime2, 0, std::uint64_t{0} - prime1};
        constexpr std::size_t run = std::size_t{1} << 24;
        while (left >= 32) {
            auto in_run = std::min(left, run) / 32;
            left -= 32 * in_run;
            for (; in_run > 0; at += 32, --in_run)
#pragma GCC unroll 4  // the lanes then stay in registers
                for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], load<std::uint64_t>(at + 8 * i));
            pause();
        }
        hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
        for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * prime1 + prime4;
    }
    hash += bytes.size();

    for (; left >= 8; at += 8, left -= 8)
        hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * prime1 + prime4;
    if (left >= 4) {
        hash = std::rotl(hash ^ load<std::uint32_t>(at) * prime1, 23) * prime2 + prime3;
        at += 4, left -= 4;
    }
    for (; left > 0; ++at, --left) hash = std::rotl(hash ^ std::to_integer<std::uint64_t>(*at) * prime5, 11) * prime1;

    hash = (hash ^ hash >> 33) * prime2;
    hash = (hash ^ hash >> 29) * prime3;
    return hash ^ hash >> 32;
}

}  // namespace

std::uint64_t xxh64(std::span<const std::byte> bytes)
{
    return hash_of(bytes, [] {});
}

std::uint64_t xxh64_of_text(std::string_view text)
{
    return xxh64(std::as_bytes(std::span(text)));
}

std::uint64_t xxh64_of_file(const std::filesystem::path& path)
{
    const auto file = MappedFile::open(path, "hash_file");
    return hash_of(file->bytes(), [&] { file->release_pages(); });
}

std::string hash_text(std::uint64_t hash)
{
    return fmt::format("xxh64:{:016x}", hash);
}

std::string hash_file(const std::filesystem::path& path)
{
    return hash_text(xxh64_of_file(path));
}

std::uint32_t crc32c(std::string_view bytes)
{
    static const auto table = [] {
        std::array<std::uint32_t, 256> entries{};
        for (std::uint32_t i = 0; i < entries.size(); ++i) {
            auto value = i;
            for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78U : 0U);
            entries[i] = value;
        }
        return entries;
    }();
    std::uint32_t checksum = 0xFFFFFFFFU;
    for (const char byte : bytes)
        checksum = table[(checksum ^ static_cast<std::uint8_t>(byte)) & 0xFFU] ^ checksum >> 8;
    return ~checksum;
}

std::uint32_t masked_crc32c(std::string_view bytes)
{
    const auto checksum = crc32c(bytes);
    return (checksum >> 15 | checksum << 17) + 0xa282ead8U;
}

}  // namespace meshard
