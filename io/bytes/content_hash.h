// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

/// XXH64 (Collet, xxHash specification), seed 0: detects flipped bits and changed files; no protection against
/// deliberate changes.
std::uint64_t xxh64(std::span<const std::byte> bytes);
std::uint64_t xxh64_of_text(std::string_view text);

/// XXH64 of a file's bytes. @throws IoError if it cannot be read.
std::uint64_t xxh64_of_file(const std::filesystem::path& path);

/// A hash in the form of manifests: `xxh64:0123456789abcdef`.
std::string hash_text(std::uint64_t hash);

/// `hash_text` of a file's bytes. @throws IoError if it cannot be read.
std::string hash_file(const std::filesystem::path& path);

/// Computes Castagnoli's checksum (CRC-32C) of RFC 3720.
std::uint32_t crc32c(std::string_view bytes);

/// Returns the checksum as TensorFlow's records have it: rotated and shifted, since a record may itself hold checksums.
std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace meshard
