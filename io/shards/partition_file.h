// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace meshard {

/// Reads the owners of rows from a file of another program:
///
/// - METIS's, gpmetis's and Scotch's `.part.N`: one number on each line; - OpenFOAM's `cellDecomposition`, ascii or
/// binary: a header in braces, then `N ( numbers )`.
///
/// @return one owner for each row, none negative, in the file's order.
/// @throws IoError if the file is missing or has neither form.
std::vector<std::int32_t> read_partition_file(const std::filesystem::path& path);

/// Passes the owners to `take` one after the other, so that memory stays small: `.part.N` are read in blocks; of
/// OpenFOAM's files all numbers are in memory.
/// @throws IoError as above, possibly after some owners have been passed.
void read_partition_file(const std::filesystem::path& path, const std::function<void(std::int32_t owner)>& take);

}  // namespace meshard
