// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

namespace meshard {

/// Hash of what a mesh is read from: of one file `xxh64_of_file`, of several (`source_files`) the hash of their names and hashes.
///
/// To read large files whole takes long. So `note`, a file of some hundred bytes, keeps the hash together with names, sizes, times of change and a
/// sample of all files (up to 1 MiB each: head, tail and blocks between). While these are the same the noted hash counts; a file that was touched or
/// replaced is read whole, and only another content gives another hash. What goes unnoticed is a change that keeps size, time and sample.
///
/// @param verify   reads everything whole in any case
/// @throws IoError if a file cannot be read. A note that cannot be written costs time, and is no error.
std::uint64_t source_hash(const std::filesystem::path& source, const std::filesystem::path& note, bool verify);

}  // namespace meshard
