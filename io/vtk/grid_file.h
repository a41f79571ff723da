// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/vtk/image_file.h"
#include "partition/mesh/data_array.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// Components that a place may have: more are the sign of a damaged file.
inline constexpr std::int64_t kMostComponents = 4096;

/// Points or cells of a regular grid: along x, y and z `count` from `first` on, counted from 0.
struct GridBox {
    std::array<std::int64_t, 3> first{0, 0, 0}, count{1, 1, 1};

    std::int64_t num_rows() const { return count[0] * count[1] * count[2]; }
};

/// All points or cells of a grid.
GridBox whole_box(const ImageGrid& grid, bool of_cells);

/// What two boxes share; counts are 0 if they share nothing.
GridBox intersection(const GridBox& a, const GridBox& b);

/// Calls `f(row in a, row in b, number of rows)` for all rows of a box that lie one after the other in both `a` and
/// `b`, which contain it; rows count x fastest.
void for_each_run(const GridBox& box, const GridBox& a, const GridBox& b,
                  const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& f);

/// Returns whether a file has the extension of one that `GridFile::open` opens.
bool is_grid_file(const std::filesystem::path& path);

/// Returns whether it is one of named arrays beside which others may be left out (`ImageGrid::left_out`), or whose
/// coordinates are: .vtr, .pvtr, .h5, .hdf5, .nc, .zarr.
bool is_array_file(const std::filesystem::path& path);

/// A file of a regular grid of which boxes are read, without the rest: of arrays that are written as bytes, raw or in
/// base64, the runs of the box, and of compressed ones the blocks that have such runs, one at a time; of arrays in
/// chunks the chunks. An array that is written as text is parsed whole.
class GridFile {
public:
    /// Opens a .vti, a .pvti, of which a piece is opened when some of its rows are read, image data in a .vtkhdf,
    /// arrays in a .zarr or .h5 (`ArrayGridFile`), or a .vtr or .pvtr, whose places are counted.
    /// @param time   of `times()`, the step that is read; none: the last one
    /// @throws IoError if it is missing, damaged or no image data, or has no such time
    static std::unique_ptr<GridFile> open(const std::filesystem::path& path, std::optional<double> time = {});

    GridFile() = default;
    GridFile(const GridFile&) = delete;
    GridFile& operator=(const GridFile&) = delete;
    virtual ~GridFile() = default;

    /// The grid. Its arrays at points and cells have names, types, components and roles, and no rows.
    const ImageGrid& grid() const { return grid_; }
    const std::string& where() const { return where_; }  ///< begins messages

    /// Reads the values of an array of numbers in a box, x fastest. Any thread may call it.
    /// @throws IoError if they are damaged, the file is cut short, or no piece has them; InvalidInput if there is no
    /// such array
    virtual DataArray read(const std::string& name, bool of_cells, const GridBox& box) const = 0;

    /// Returns the times of a file with steps (arrays in a .zarr or .h5), of others nothing.
    /// @throws IoError if they do not ascend, or an array has steps of which the times are not known
    virtual std::vector<double> times() const { return {}; }

protected:
    /// The array that `read` fills. @throws InvalidInput if there is no such array, or it holds texts; IoError if it
    /// has more than `kMostComponents`
    DataArray values_for(const std::string& name, bool of_cells, const GridBox& box) const;

    std::string where_;
    ImageGrid grid_;
};

/// Reads a grid with the values of all its arrays but texts, which are left out. @throws as `GridFile::open` and
/// `GridFile::read`
ImageGrid read_whole_grid(const std::filesystem::path& path, std::optional<double> time);

}  // namespace meshard
