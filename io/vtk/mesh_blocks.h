// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// A named part of a file that holds several meshes: a block of a .vtm, a patch of a case, a zone of a .cgns.
struct MeshBlock {
    std::string name;  ///< with '/' between the levels, e.g. `boundary/inlet`
    Mesh mesh;
};

/// Returns whether one of `wanted` selects the block `name`: its own name, or a level above it (`boundary` selects
/// `boundary/inlet`). An empty list selects all.
bool is_wanted_block(std::string_view name, std::span<const std::string> wanted);

/// The blocks that `wanted` selects. @throws InvalidInput, with a message that begins with `where`, if an entry selects
/// none; the message has the nearest name.
std::vector<MeshBlock> choose_blocks(std::vector<MeshBlock> blocks, std::span<const std::string> wanted,
                                     const std::string& where);

/// Concatenates the rows of all blocks; points are not merged. A single block is returned as it is.
///
/// The result has every array of any block. Rows of blocks without it get NaN (floating), -1 (signed), the largest
/// value (unsigned) or an empty text. If types differ, the result is Float64, or Int64 if all are integers. Field data
/// with one name but different values are kept as `name of block`. With `number_blocks` the result has the cell array
/// `BlockId` (Int32; for clouds a point array) and the field array `BlockName`.
/// @throws IoError, with a message that begins with `where`, if arrays of one name have different numbers of
/// components.
Mesh join_blocks(std::vector<MeshBlock> blocks, bool number_blocks, const std::string& where);

}  // namespace meshard
