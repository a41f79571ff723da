// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "io/vtk/grid_file.h"
#include "sharding/ranks/device_mesh.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// Inputs and targets of a regular grid, or of a block of it. The rows are points or cells in the file's order, x
/// fastest. Rows that do not count (`data.mask`) are NaN in both.
struct GridRows {
    /// Number of rows of the whole along each direction with more than one, slowest first: z, y, x.
    std::vector<std::int64_t> extents;
    at::Tensor told;                     ///< (rows, components of `data.arrays` side by side), float32: the inputs
    at::Tensor target;                   ///< (rows, channels), float32, in physical units; undefined without the truth
    std::vector<std::int64_t> channels;  ///< number of channels of each field; empty without the truth
};

/// Which rows of a box do not count (`data.mask`).
class LeftOut {
public:
    LeftOut(std::int64_t num_rows, bool marks_nan);

    /// Leaves out the rows that an array marks: where it is 0 or NaN, and of VTK's marks of ghosts the hidden ones.
    /// @param where   begins messages   @throws InvalidInput for an array of several components
    void mark(const DataArray& mask, bool on_cells, const std::string& where);

    /// Leaves out a row whose value is NaN, if NaN marks rows.
    void take(std::int64_t row, double value)
    {
        if (marks_nan_ && std::isnan(value)) rows_[row] = 1;
    }

    bool has(std::int64_t row) const { return rows_[row] != 0; }
    bool operator==(const LeftOut& other) const = default;

    /// Puts NaN in these rows of (N, C).
    void erase(at::Tensor& rows) const;

private:
    bool marks_nan_;
    std::vector<std::uint8_t> rows_;
};

/// Returns the array of that name, or those that a name with `*` matches, by the number or else the text for which `*`
/// stands.
/// @param where   begins messages
/// @throws InvalidInput if there is none (with the nearest name), it is left out (`ImageGrid::left_out`), holds texts
/// or is at the points where cells are wanted
std::vector<const DataArray*> named_arrays(const ImageGrid& grid, const std::string& name, bool on_cells,
                                           const std::string& where);

/// Reads the inputs, and on request the targets, of the rows in a box of a grid, by name (`named_arrays`); a name
/// with `*` in `data.arrays` stands for those that are not learnt.
/// @param with_truth   reads the targets, too
/// @param where        begins messages
/// @throws IoError as `GridFile::read`; InvalidInput for a grid with fewer than two directions, an array that is
/// missing (with the nearest name), a mask of several components, and a value that is not finite in a row that counts,
/// with the place of the row
GridRows grid_rows(const GridFile& file, const GridBox& box, const DataConfig& data, bool with_truth,
                   const std::string& where);

/// Says where in the whole grid a row of a box lies: `(x, y, z) = (1, 2, 0), counted from 0`.
std::string place_text(const GridBox& box, std::int64_t row);

/// Returns the numbers of rows along the directions with more than one, slowest first.
/// @throws InvalidInput as `grid_rows`
std::vector<std::int64_t> extents_of(const ImageGrid& grid, bool on_cells, const std::string& where);

/// Writes extents as `32 x 16`, x first.
std::string extents_text(const std::vector<std::int64_t>& extents);

/// How the ranks of a domain share a grid.
struct GridLayout {
    std::vector<std::int64_t> extents;  ///< the whole grid's, as `GridRows::extents`
    SpecPtr of_grid;                    ///< (1, C, extents): each rank has a block of it
    SpecPtr of_rows;                    ///< (1, N, C): of the same, by `layout_of_rows`

    /// Returns which rows of a grid with these extents are this rank's.
    GridBox own_box(const ImageGrid& grid, bool on_cells) const;
    /// Returns the places of this rank's rows in the whole grid, ascending.
    std::vector<std::int64_t> own_places() const;
    /// Returns what each rank has, (its rows, C), as one sharded tensor (1, N, C).
    at::Tensor joined(const at::Tensor& own) const;
    /// Returns inputs of what each rank is told, (its rows, C).
    PointInputs inputs(const at::Tensor& own) const;
};

/// Lays a grid out over the ranks of a domain: its slowest directions are cut, the first among the ranks of the first
/// axis of `blocks` and so on, into parts of nearly equal sizes, or sizes near to the shares of their ranks, that are
/// multiples of `rows_together` if there are enough rows.
/// @param where   begins messages
/// @param shares   of all ranks of `blocks`, in a row; empty: equal ones
/// @throws InvalidInput if there are more axes than directions, or, on several axes, more ranks of one than rows
GridLayout grid_layout(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                       const std::shared_ptr<const DeviceMesh>& blocks, const std::string& where,
                       const Shares& shares = {});

/// Returns among how many ranks each of the slowest directions of a grid is best cut: the rank that has the most rows
/// beside cuts has the fewest then; of equal cuts the one with the smaller blocks, then of fewer directions. All ranks
/// cut the first direction if the grid has too few groups of `rows_together` rows for any other cut.
std::vector<std::int64_t> cut_of_least_halo(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                                            std::int64_t num_ranks);

/// Returns how many ranks cut each direction of a grid: what is said (`parallel.domain`) if it makes as many ranks;
/// else the cut with the least halo for a model that reads neighbours, and for others all cut the first direction.
std::vector<std::int64_t> cut_of_grid(const std::vector<std::int64_t>& said, const ModelConfig& model,
                                      const std::vector<std::int64_t>& extents, std::int64_t num_ranks);

/// All ranks of a program, by the directions in which they cut a grid.
class GridRanks {
public:
    /// Collective.
    explicit GridRanks(GroupFactory& world);

    const std::shared_ptr<const DeviceMesh>& in_a_row() const { return in_a_row_; }
    /// Returns them as blocks of the shape of `cut_of_grid`, the same for the same shape. Collective.
    const std::shared_ptr<const DeviceMesh>& blocks(const std::vector<std::int64_t>& cut);

private:
    GroupFactory& world_;
    std::shared_ptr<const DeviceMesh> in_a_row_;
    std::map<std::vector<std::int64_t>, std::shared_ptr<const DeviceMesh>> blocks_;
};

/// Makes a case over the ranks of a domain, with its constants, from each rank's rows.
/// @param target   may be undefined   @param channels   of each field
CaseTensors grid_case_tensors(const at::Tensor& told, const at::Tensor& target,
                              const std::vector<std::int64_t>& channels, const CaseSource& source,
                              const DataConfig& data, const GridLayout& layout);

}  // namespace meshard
