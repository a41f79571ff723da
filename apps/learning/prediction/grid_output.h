// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/vtk/grid_file.h"
#include "sharding/ranks/rank_group.h"

#include <cstdint>
#include <filesystem>

namespace meshard {

/// What a rank has of arrays of a grid.
struct OwnRows {
    GridBox box;
    bool of_cells = true;
    std::int64_t num_arrays = 0;
};

/// Writes a grid as a .vti, about a million rows of an array at a time. Texts at points and cells are left out.
/// Collective.
/// @param grid   its arrays at points and cells are read from `file`, but for the last `own.num_arrays`, of single
/// precision, which have this rank's rows
/// @throws UnusableInput as `GridFile::read` and `ImageWriter`
void write_grid(const std::filesystem::path& output, const ImageGrid& grid, const GridFile& file, const OwnRows& own,
                const RankGroup& ranks);

}  // namespace meshard
