// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// Checks a shards folder against everything it promises; empty if all holds, else one sentence a fault.
///
/// - each piece has the bytes, hash, counts and arrays that the manifest says, and is a valid subdomain;
/// - every cell and every point of the source is owned by exactly one part, ids lie in range and occur once a piece;
/// - a point is owned by the part of the first cell that uses it;
/// - ghosts name their true owner and equal its rows bit for bit: geometry, type and every array;
/// - ghosts and their levels are those of a breadth-first search over the merged mesh.
///
/// The list ends at 100 faults. Memory: the whole mesh, twice.
/// @throws IoError if `dir` is no shards folder.
std::vector<std::string> check_shards(const std::filesystem::path& dir);

}  // namespace meshard
