// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace meshard {

/// A regular grid with arrays at its points and cells, like VTK's image data: x varies fastest.
struct ImageGrid {
    std::array<std::int64_t, 3> first{0, 0, 0};       ///< index of the first point along x, y, z
    std::array<std::int64_t, 3> num_points{1, 1, 1};  ///< along x, y, z, at least 1
    std::array<double, 3> origin{0, 0, 0};            ///< position of the point with index 0, in the file's length unit
    std::array<double, 3> spacing{1, 1, 1};
    std::vector<double> direction;  ///< direction of the axes, nine numbers row by row; empty: those of space
    std::vector<DataArray> point_data, cell_data, field_data;

    /// Number of cells along an axis: one between two points, and one if there is a single point.
    std::int64_t num_cells(int axis) const { return num_points[axis] > 1 ? num_points[axis] - 1 : 1; }
};

/// Reads a .vti file with one piece, in any encoding.
/// @throws IoError if it is missing, damaged, no image data, or in several pieces
ImageGrid read_image(const std::filesystem::path& path);

/// Writes a .vti file, its arrays appended and uncompressed. Atomic.
/// @throws InvalidInput if an array has another number of rows than the grid has points or cells; IoError if it cannot
/// be written
void write_image(const std::filesystem::path& path, const ImageGrid& grid);

/// The points and cells of a grid in their order, without arrays: hexahedra, or in a plane quadrilaterals. Takes 44
/// bytes for each cell and 12 for each point.
/// @throws InvalidInput for more than 2147483647 points, and for a grid with fewer than two directions
Mesh image_mesh(const ImageGrid& grid);

}  // namespace meshard
