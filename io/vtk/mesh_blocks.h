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

/// Whether one of `wanted` chooses the block `name`: its own name, or a level above it (`boundary` chooses
/// `boundary/inlet`). An empty list chooses all.
bool is_wanted_block(std::string_view name, std::span<const std::string> wanted);

/// The blocks that `wanted` chooses. @throws InvalidInput, beginning with `where`, if an entry chooses none; the message has the nearest name.
std::vector<MeshBlock> choose_blocks(std::vector<MeshBlock> blocks, std::span<const std::string> wanted, const std::string& where);

/// The rows of all blocks one after another; points are not merged. A single block is returned as it is.
///
/// Arrays are kept that any block has. Rows of blocks without it get NaN (floating), -1 (signed), the largest value (unsigned)
/// or an empty text. Where types differ the result is Float64, or Int64 if all are integers. Field data of one name but
/// different values are kept as `name of block`.
/// With `number_blocks` there is the cell array `BlockId` (Int32; of clouds: point array) and the field array `BlockName`.
/// @throws IoError, beginning with `where`, if arrays of one name have different numbers of components.
Mesh join_blocks(std::vector<MeshBlock> blocks, bool number_blocks, const std::string& where);

}  // namespace meshard
