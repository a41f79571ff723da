// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace meshard {

/// A shards folder has a file for each part, with a header, names of arrays, and a line of the manifest and the index: of small parts that is most of it.
/// @param num_rows   of the mesh that is cut
/// @param place      a folder of the disk to which the folder goes
/// @return what is to be warned of: how large the folder becomes, without a full stop; empty where that is not much, or most of it are the rows
/// @throws UsageError where the disk has less room
std::string size_of_small_parts(std::int64_t num_parts, std::int64_t num_rows, const std::filesystem::path& place);

}  // namespace meshard
