// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace meshard {

/// Hashes the source of a mesh: one file by `xxh64_of_file`, several (`source_files`) by their names and hashes.
///
/// Reading large files whole takes long, so the file `note`, of some hundred bytes, keeps the hash together with the
/// names, sizes, times of change and a sample of all files (up to 1 MiB each: head, tail and blocks between). While
/// these are unchanged, the noted hash is returned; otherwise the files are read whole, and only another content gives
/// another hash. A change that keeps size, time and sample goes unnoticed.
///
/// @param verify   reads all files whole in any case
/// @throws IoError if a file cannot be read. A note that cannot be written is no error.
std::uint64_t source_hash(const std::filesystem::path& source, const std::filesystem::path& note, bool verify);

}  // namespace meshard
