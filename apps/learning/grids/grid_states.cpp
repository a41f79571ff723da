// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_states.h"

#include "apps/learning/cases/case_tensors.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <memory>
#include <utility>

namespace meshard {

/// What was read of a state. `state` points to the arrays.
struct GridStates::Read {
    Read(std::vector<DataArray> of_box, const GridBox& box, bool on_cells, const std::string& where)
        : arrays(std::move(of_box)),
          state(arrays, box.num_rows(), on_cells, where, [box](std::int64_t row) { return place_text(box, row); })
    {
    }
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;

    std::vector<DataArray> arrays;
    ReadState state;
};

GridStates::GridStates(const ImageGrid& grid, const GridBox& box, const DataConfig& data, std::string where)
    : num_points_(grid.num_points), extents_(extents_of(grid, data.on_cells, where)), box_(box), arrays_(data),
      where_(std::move(where))
{
}

std::unique_ptr<const GridStates::Read> GridStates::read(const SeriesState& state, bool with_fields,
                                                         const std::vector<std::string>& further) const
{
    const auto where = state_text(where_, state);
    const auto file = GridFile::open(state.file);
    const auto& grid = file->grid();
    if (grid.num_points != num_points_)
        throw InvalidInput(fmt::format("{}: it has {} points, and another state of the run {}. All states of a run "
                                       "have the same grid.",
                                       where, fmt::join(grid.num_points, " x "), fmt::join(num_points_, " x ")));
    std::vector<std::string> names;
    if (with_fields)
        for (const auto& field : arrays_.fields) names.push_back(field.state);
    names.insert(names.end(), further.begin(), further.end());
    std::vector<DataArray> arrays;
    for (const auto& name : names) {
        const auto& declared = require_array(arrays_.on_cells ? grid.cell_data : grid.point_data, name, where,
                                             arrays_.on_cells ? "cell" : "point");
        arrays.push_back(file->read(declared.name(), arrays_.on_cells, box_));
    }
    return std::make_unique<const Read>(std::move(arrays), box_, arrays_.on_cells, where);
}

std::vector<std::unique_ptr<const GridStates::Read>>
GridStates::read_told(std::span<const SeriesState* const> states) const
{
    std::vector<std::unique_ptr<const Read>> all;
    for (const auto* state : states)
        all.push_back(read(*state, true, all.empty() ? arrays_.arrays : std::vector<std::string>()));
    return all;
}

std::unique_ptr<const GridStates::Read> GridStates::read_given(const SeriesState* state) const
{
    return state && !arrays_.given.empty() ? read(*state, false, arrays_.given) : nullptr;
}

GridRows GridStates::step(const RunStep& step) const
{
    std::vector<const SeriesState*> told;
    for (std::int64_t back = 0; back < arrays_.history; ++back) told.push_back(&step.told(back));
    const auto read_states = read_told(told);
    std::vector<ReadState> states;
    for (const auto& one : read_states) states.push_back(one->state);
    const auto next = read(step.next(), true, arrays_.given);
    GridRows rows{.extents = extents_,
                  .told = float_rows(meshard::told(states, &next->state, step.duration(), arrays_)),
                  .target = {},
                  .channels = {}};
    std::vector<at::Tensor> targets;
    for (const auto& field : learnt_fields(states.front(), next->state, step.duration(), arrays_)) {
        rows.channels.push_back(field.num_components());
        targets.push_back(float_rows(field));
    }
    rows.target = at::cat(targets, 1);
    return rows;
}

at::Tensor GridStates::told(std::span<const SeriesState* const> told, const SeriesState* given, double step) const
{
    const auto read_states = read_told(told);
    std::vector<ReadState> states;
    for (const auto& one : read_states) states.push_back(one->state);
    const auto next = read_given(given);
    return float_rows(meshard::told(states, next ? &next->state : nullptr, step, arrays_));
}

at::Tensor GridStates::told_besides(const SeriesState& state, const SeriesState* given, double step) const
{
    const auto now = read(state, false, arrays_.arrays), next = read_given(given);
    return float_rows(meshard::told_besides(now->state, next ? &next->state : nullptr, step, arrays_));
}

at::Tensor GridStates::told_fields(const SeriesState& state) const
{
    return float_rows(meshard::told_fields(read(state, true, {})->state, arrays_));
}

}  // namespace meshard
