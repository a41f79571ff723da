// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/run_step.h"
#include "apps/learning/grids/grid_case.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace meshard {

/// How a rank reads the states of a run of grids: the rows of its block alone. All functions may be called by any
/// thread.
/// They throw IoError as `GridFile::open` and `GridFile::read`, and InvalidInput, beginning with the state, for a grid
/// with other extents, an array that is missing (with the nearest name) and one that is not finite, with the place.
class GridStates {
public:
    /// @param grid   of any state   @param box   the rows of this rank   @param where   as of `state_text`
    GridStates(const ImageGrid& grid, const GridBox& box, const DataConfig& data, std::string where);

    /// Returns inputs and targets of a step: what is told of the states, and what is learnt.
    GridRows step(const RunStep& step) const;

    /// All return (rows, columns), float32, of what the functions of the same names say.
    at::Tensor told(std::span<const SeriesState* const> states, const SeriesState* given, double step) const;
    at::Tensor told_besides(const SeriesState& state, const SeriesState* given, double step) const;
    at::Tensor told_fields(const SeriesState& state) const;

private:
    struct Read;
    /// Reads the fields, and further arrays.
    std::unique_ptr<const Read> read(const SeriesState& state, bool with_fields,
                                     const std::vector<std::string>& further) const;
    std::vector<std::unique_ptr<const Read>> read_told(std::span<const SeriesState* const> states) const;
    /// Reads the given arrays of the state that follows; null if there are none.
    std::unique_ptr<const Read> read_given(const SeriesState* state) const;

    std::array<std::int64_t, 3> num_points_;
    std::vector<std::int64_t> extents_;
    GridBox box_;
    StateArrays arrays_;
    std::string where_;
};

}  // namespace meshard
