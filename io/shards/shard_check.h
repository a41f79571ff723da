// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshard {

/// One condition that a shards folder must meet, and the result of its test.
struct ShardPromise {
    std::string text;                 ///< e.g. `every cell is owned by exactly one part`
    bool was_tested = false;          ///< false if its test requires another promise that does not hold
    std::vector<std::string> faults;  ///< one sentence each; empty if the condition holds

    bool holds() const { return was_tested && faults.empty(); }
};

/// Tests all conditions of a shards folder, each after those on which its test relies:
///
/// - each piece has the bytes, hash, counts and arrays given in the manifest, and is a valid subdomain;
/// - every cell and every point of the source is owned by exactly one part, ids lie in range and occur once a piece;
/// - a point is owned by the part of the first cell that uses it;
/// - ghosts name their true owner and equal its rows bit for bit: geometry, type and every array;
/// - ghosts and their levels are those of a breadth-first search over the merged mesh.
///
/// Faults beyond the hundredth are left out. Memory: the whole mesh, twice.
/// @throws IoError if `dir` is no shards folder.
std::vector<ShardPromise> test_shards(const std::filesystem::path& dir);

/// The faults of all conditions; empty if all hold. @throws IoError if `dir` is no shards folder.
std::vector<std::string> check_shards(const std::filesystem::path& dir);

}  // namespace meshard
