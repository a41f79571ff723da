// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_states.h"

#include "apps/learning/cases/case_tensors.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace meshard {

/// What was read of a state. `state` points to the arrays.
struct GridStates::Read {
    Read(std::vector<DataArray> of_box, std::vector<DataArray> of_state, std::optional<LeftOut> of_fields,
         std::optional<LeftOut> left_out, const GridBox& box, bool on_cells, const std::string& where)
        : arrays(std::move(of_box)), constants(std::move(of_state)), of_fields(std::move(of_fields)),
          left_out(std::move(left_out)),
          state(
              arrays, constants, box.num_rows(), on_cells, where,
              [box](std::int64_t row) { return place_text(box, row); },
              this->left_out ? [this](std::int64_t row) { return !this->left_out->has(row); }
                             : std::function<bool(std::int64_t)>())
    {
    }
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;

    /// Puts NaN in the rows of (N, C) that do not count.
    at::Tensor erased(at::Tensor rows) const
    {
        if (left_out) left_out->erase(rows);
        return rows;
    }

    std::vector<DataArray> arrays, constants;
    std::optional<LeftOut> of_fields;  // rows that do not count by the mask's array, or by the fields
    std::optional<LeftOut> left_out;   // rows that do not count by them or by other arrays
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
    const auto file = GridFile::open(state.file, state.time_in_file);
    const auto& grid = file->grid();
    if (grid.num_points != num_points_)
        throw InvalidInput("{}: it has {} points, and another state of the run {}. All states of a run "
                           "have the same grid.",
                           where, fmt::join(grid.num_points, " x "), fmt::join(num_points_, " x "));
    const bool on_cells = arrays_.on_cells;
    const auto read_array = [&](const std::string& name) {
        return file->read(named_arrays(grid, name, on_cells, where).front()->name(), on_cells, box_);
    };
    std::vector<DataArray> arrays;
    if (with_fields)
        for (const auto& field : arrays_.fields) arrays.push_back(read_array(field.state));
    const auto num_fields = arrays.size();
    const auto& of_rows = arrays_at(grid, on_cells);
    for (const auto& name : further)
        if (find_array(of_rows, name) || !find_array(grid.field_data, name)) arrays.push_back(read_array(name));
    std::optional<LeftOut> of_fields, left_out;
    if (!arrays_.mask.empty()) {
        left_out.emplace(box_.num_rows(), !arrays_.has_mask_array());
        if (arrays_.has_mask_array()) left_out->mark(read_array(arrays_.mask), on_cells, where);
        for (std::size_t i = 0; i <= arrays.size(); ++i) {
            if (i == num_fields) of_fields = left_out;
            if (i == arrays.size() || arrays_.has_mask_array()) continue;
            for (std::int64_t row = 0; row < arrays[i].num_rows(); ++row)
                for (std::int32_t c = 0; c < arrays[i].num_components(); ++c)
                    left_out->take(row, arrays[i].value(row, c));
        }
    }
    return std::make_unique<const Read>(std::move(arrays), grid.field_data, std::move(of_fields), std::move(left_out),
                                        box_, on_cells, where);
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
    const auto require_same_mask = [&](const Read& one) {
        if (one.of_fields == read_states.front()->of_fields) return;
        throw InvalidInput("{}: by data.mask ({}) other {}s do not count than in another state of the run. "
                           "They stay the same in a run: mask all that does not count in one of its states.",
                           one.state.where, arrays_.mask, arrays_.on_cells ? "cell" : "point");
    };
    for (const auto& one : read_states) require_same_mask(*one);
    require_same_mask(*next);
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
    for (auto* part : {&rows.told, &rows.target}) {
        for (const auto& one : read_states) *part = one->erased(*part);
        *part = next->erased(*part);
    }
    return rows;
}

at::Tensor GridStates::told(std::span<const SeriesState* const> told, const SeriesState* given, double step) const
{
    const auto read_states = read_told(told);
    std::vector<ReadState> states;
    for (const auto& one : read_states) states.push_back(one->state);
    const auto next = read_given(given);
    auto rows = float_rows(meshard::told(states, next ? &next->state : nullptr, step, arrays_));
    for (const auto& one : read_states) rows = one->erased(rows);
    return next ? next->erased(rows) : rows;
}

at::Tensor GridStates::told_besides(const SeriesState& state, const SeriesState* given, double step) const
{
    const auto now = read(state, false, arrays_.arrays), next = read_given(given);
    return float_rows(meshard::told_besides(now->state, next ? &next->state : nullptr, step, arrays_));
}

at::Tensor GridStates::told_fields(const SeriesState& state) const
{
    const auto one = read(state, true, {});
    return one->erased(float_rows(meshard::told_fields(one->state, arrays_)));
}

}  // namespace meshard
