// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
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

} // namespace meshard
