// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/foam/foam_region.h"
#include "io/vtk/mesh_blocks.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Blocks of one region.
struct FoamBlocks {
    std::vector<MeshBlock> blocks;
    std::vector<std::string> all_names;  ///< names of the blocks that could be read
    std::int64_t num_points = 0;         ///< number of points of the whole region
};

/// The folders `processor0`, `processor1`, ... of a case; none if it is not decomposed.
/// @throws IoError if one is missing between others, or the case is in the collated form (`processors4`).
std::vector<std::filesystem::path> processor_folders(const std::filesystem::path& case_folder);

/// Reads one region from all processors and merges it. Blocks have the point array `GlobalPointIds`, ids in the region.
/// @throws IoError, with a message that begins with `where`, if the processors do not fit together.
FoamBlocks read_decomposed(std::span<FoamRegion> processors, const std::string& where, const ReadOptions& options);

}  // namespace meshard
