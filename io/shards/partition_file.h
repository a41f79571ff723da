// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace meshard {

/// Owners of the rows from a file that another program wrote:
///
/// - METIS's, gpmetis's and Scotch's `.part.N`: one number a line;
/// - OpenFOAM's `cellDecomposition`, ascii or binary: a header in braces, then `N ( numbers )`.
///
/// @return one owner a row, none negative, in the file's order.
/// @throws IoError if the file is missing or is neither.
std::vector<std::int32_t> read_partition_file(const std::filesystem::path& path);

/// The same one after the other, so that nobody needs hold all: `.part.N` are read in blocks, of OpenFOAM's files the numbers are held.
/// @throws IoError as above, also after some owners were taken.
void read_partition_file(const std::filesystem::path& path, const std::function<void(std::int32_t owner)>& take);

}  // namespace meshard
