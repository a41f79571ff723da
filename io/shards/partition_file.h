// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace meshard {

/// Reads the owners of rows from a file of another program, and passes them to `take` in the file's order, one for
/// each row, none negative:
///
/// - METIS's, gpmetis's and Scotch's `.part.N`: one number on each line. They are read in blocks.
/// - OpenFOAM's `cellDecomposition`, ascii or binary: a header in braces, then `N ( numbers )`. All numbers are in
///   memory.
///
/// @throws IoError if the file is missing or has neither form, possibly after some owners have been passed.
void read_partition_file(const std::filesystem::path& path, const std::function<void(std::int32_t owner)>& take);

}  // namespace meshard
