// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace meshard {

/// XXH64 (Collet, xxHash specification), seed 0: finds flipped bits and changed files, no protection against intent.
std::uint64_t xxh64(std::span<const std::byte> bytes);

/// Hash of a file's bytes in the form `xxh64:0123456789abcdef`. @throws IoError if it cannot be read.
std::string hash_file(const std::filesystem::path& path);

}  // namespace meshard
