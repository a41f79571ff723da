// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace meshard {

/// Estimates the size of a shards folder with so many parts that their headers, array names and manifest lines take
/// most of it.
/// @param num_rows   rows of the mesh that is cut
/// @param place      a folder on the disk that gets the shards folder
/// @return the text of a warning, without a full stop, that says how large the folder becomes; empty if it is small, or
///         if rows take most of it
/// @throws UsageError if the disk has less room
std::string size_of_small_parts(std::int64_t num_parts, std::int64_t num_rows, const std::filesystem::path& place);

}  // namespace meshard
