// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/atomic_file.h"
#include "io/vtk/vtk_xml_file.h"
#include "partition/mesh/data_array.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// Indices of points lie between this and its negative, so that differences can be computed.
inline constexpr std::int64_t kFarthestPoint = std::int64_t{1} << 32;

/// A regular grid with arrays at its points and cells, like VTK's image data: x varies fastest.
struct ImageGrid {
    std::array<std::int64_t, 3> first{0, 0, 0};       ///< index of the first point along x, y, z
    std::array<std::int64_t, 3> num_points{1, 1, 1};  ///< along x, y, z, at least 1
    std::array<double, 3> origin{0, 0, 0};            ///< position of the point with index 0, in the file's length unit
    std::array<double, 3> spacing{1, 1, 1};
    std::vector<double> direction;  ///< direction of the axes, nine numbers row by row; empty: those of space
    std::vector<DataArray> point_data, cell_data, field_data;
    std::map<std::string, std::string> left_out;  ///< arrays of the file that are not read, and why

    /// Number of cells along an axis: one between two points, and one if there is a single point.
    std::int64_t num_cells(int axis) const { return num_points[axis] > 1 ? num_points[axis] - 1 : 1; }
};

/// Reads extent, origin, spacing and direction of a grid. @param image   <ImageData> or <PImageData>
/// @throws IoError if they are no numbers, or there are no points
ImageGrid image_head(const VtkXmlFile& file, const XmlElement& image);

/// Reads six numbers of an attribute: the first and the last point along x, then y, then z.
/// @throws IoError if it has others, or some are beyond `kFarthestPoint`
std::vector<std::int64_t> image_extent(const VtkXmlFile& file, const XmlElement& element, const char* name);

/// Reads a .vti file with one piece, in any encoding.
/// @throws IoError if it is missing, damaged, no image data, or in several pieces
ImageGrid read_image(const std::filesystem::path& path);

/// Reads an image as `read_image`; none if its file has several pieces.
std::optional<ImageGrid> read_image_of_one_piece(const std::filesystem::path& path);

/// Writes a .vti file, its arrays appended and uncompressed. Atomic. Texts are left out.
/// @throws InvalidInput if an array has another number of rows than the grid has points or cells; IoError if it cannot
/// be written
void write_image(const std::filesystem::path& path, const ImageGrid& grid);

/// Writes the same file piece by piece.
class ImageWriter {
public:
    /// Writes what comes before the values. @param grid   its arrays at points and cells need have no rows
    /// @throws IoError if it cannot be written
    ImageWriter(const std::filesystem::path& path, const ImageGrid& grid);

    /// Writes the next values: those of all arrays that are no texts, those about the grid first, then at points, then
    /// at cells, in their order and row by row.
    void write(std::span<const std::byte> values);

    /// @throws IoError; InvalidInput if values are missing or there are more
    void commit();

private:
    void begin_array();

    AtomicFile file_;
    std::vector<std::uint64_t> sizes_;  // of the arrays in bytes
    std::size_t next_ = 0;              // array that begins next
    std::uint64_t left_ = 0;            // bytes of the array before it
};

/// The points (Float64) and cells of a grid in their order, without arrays: hexahedra, or in a plane quadrilaterals.
/// Takes 44 bytes for each cell and 24 for each point.
/// @throws InvalidInput for more than 2147483647 points, and for a grid with fewer than two directions
Mesh image_mesh(const ImageGrid& grid);

}  // namespace meshard
