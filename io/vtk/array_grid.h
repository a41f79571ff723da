// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/bytes/packed_numbers.h"
#include "io/vtk/grid_file.h"
#include "partition/mesh/data_array.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// What is known of an array before it is read.
struct ShapedArray {
    ScalarType type = ScalarType::Float32;
    std::vector<std::int64_t> shape;           ///< slowest dimension first
    std::vector<std::string> dimension_names;  ///< of each dimension; empty: the file has none
    std::string unit;
    PackedNumbers packing;
};

/// A file of named arrays that say nothing of a grid but their shapes. The grid is the one to which most arrays belong;
/// each has two or three directions, slowest first, and maybe components: in the dimension named `component`,
/// `components`, `channel`, `channels` or `c`, which is the first or the last, and where dimensions have no names in a
/// last or first one beside those of the grid. An array of one dimension that has a direction's name, or without names
/// is called `x`, `y` or `z`, has the coordinates along it: the grid has their spacing if it is the same everywhere.
///
/// Arrays may have one dimension more, of time: the one named `time`, `times`, `t`, `step` or `valid_time`, where
/// dimensions have no names the first one if an array of such a name and one dimension has its length. The array of
/// that name, in the same group or outside of all, has the times. Of such arrays one step is read, and its time is the
/// field array `TimeValue` with the unit of the times; arrays without time belong to all steps.
///
/// Packed numbers are unpacked, to float32 from those of at most two bytes and float32, else to float64.
class ArrayGridFile : public GridFile {
public:
    DataArray read(const std::string& name, bool of_cells, const GridBox& box) const override;
    std::vector<double> times() const override;

protected:
    /// Finds the grid, and declares the arrays that belong to it. The others are left out (`ImageGrid::left_out`).
    /// @param time   of the step that is read; none: the last one
    /// @throws IoError if no array has two dimensions, or there is no such time
    void declare(std::map<std::string, ShapedArray> arrays, bool of_cells, std::optional<double> time);

    /// Fills `numbers` with those of an array as they are stored, from `first` on, `count` along each dimension.
    virtual void read_box(const std::string& name, const std::vector<std::int64_t>& first,
                          const std::vector<std::int64_t>& count, DataArray& numbers) const = 0;

private:
    enum class Components : std::uint8_t { None, First, Last };
    /// The grid that an array may have.
    struct Directions {
        std::vector<std::int64_t> counts;
        std::vector<std::string> names;
    };

    static std::vector<Directions> possible_directions(const ShapedArray& array);
    static std::string name_of_direction(const Directions& directions, std::size_t dim);
    bool is_coordinate(const std::string& name, const Directions& directions) const;
    static bool fits(const ShapedArray& array, const Directions& directions, Components& components);
    void take_time(std::map<std::string, ShapedArray>& arrays);
    void choose_step(std::optional<double> time);
    double time_of(std::int64_t step) const;
    void read_values(const std::string& name, const std::vector<std::int64_t>& first,
                     const std::vector<std::int64_t>& count, DataArray& values) const;
    void set_spacing(const std::map<std::string, ShapedArray>& arrays, const Directions& directions, bool of_cells);

    std::map<std::string, std::pair<ScalarType, PackedNumbers>> packed_;  // arrays, and the types that are stored
    std::map<std::string, Components> components_;
    std::size_t num_directions_ = 0;
    std::map<std::string, std::size_t> time_dimensions_;        // each array's that has one
    std::optional<std::pair<std::string, ShapedArray>> times_;  // the array that has the times
    std::int64_t step_ = 0;                                     // which is read
    std::string without_times_;                                 // why an array with a dimension of time is left out
};

/// Attributes of a Zarr group that tell `open_zarr_grid` what the arrays of a grid, its slowest direction first, do
/// not.
nlohmann::ordered_json attributes_of_grid(const ImageGrid& grid, bool of_cells);

/// Opens a folder with a Zarr group. Its arrays are at cells, unless its attributes are those of a grid at points.
/// @throws as `open_zarr_group` and `ArrayGridFile::declare`
std::unique_ptr<GridFile> open_zarr_grid(const std::filesystem::path& path, std::optional<double> time);

/// Opens an HDF5 file: image data if it has a group VTKHDF, else its data sets at cells, named by their paths.
/// @throws IoError as `ArrayGridFile::declare`, if it is missing or damaged, or this build has no HDF5
std::unique_ptr<GridFile> open_hdf5_grid(const std::filesystem::path& path, std::optional<double> time);

}  // namespace meshard
