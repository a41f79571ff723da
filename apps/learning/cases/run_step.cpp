// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/run_step.h"

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/categories.h"
#include "io/mesh_io.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/error.h"
#include "partition/mesh/mesh_graph.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace meshard {
namespace {

constexpr std::size_t kMostRunsKept = 8;

/// Returns an array of a state, the one row of a constant, or for `kCoordinates` its points.
const DataArray& values_of(const ReadState& state, const std::string& name)
{
    const auto* constant = find_array(*state.arrays, name) ? nullptr : find_array(*state.constants, name);
    if (constant && constant->num_rows() != 1)
        throw InvalidInput("{}: the field array '{}' has {} values, expected one of the whole state, or an "
                           "array with one for each {}.",
                           state.where, name, constant->num_rows(), state.on_cells ? "cell" : "point");
    const auto& array = name == kCoordinates && state.points ? *state.points
                        : constant                           ? *constant
                                   : require_array(*state.arrays, name, state.where, state.on_cells ? "cell" : "point");
    for (std::int64_t row = 0; row < array.num_rows(); ++row) {
        for (std::int32_t c = 0; c < array.num_components(); ++c) {
            const auto value = array.value(row, c);
            if (std::isfinite(static_cast<float>(value)) || (state.counts && !state.counts(row))) continue;
            throw InvalidInput("{}: {} {} in {}. Repair the state or leave the run out.", state.where,
                               name == kCoordinates ? "the coordinates are" : fmt::format("the array '{}' is", name),
                               std::isnan(value) ? "NaN" : "infinite or beyond single precision", state.place(row));
        }
    }
    return array;
}

/// Appends the columns of arrays to rows of numbers; an array of one row has it in all.
class Columns {
public:
    explicit Columns(std::int64_t num_rows) : num_rows_(num_rows) {}

    void add(const DataArray& array) { parts_.push_back(&array); }

    /// @param last   a further column with this number
    DataArray joined(const std::string& name, std::optional<double> last = std::nullopt) const
    {
        std::int32_t num_columns = last ? 1 : 0;
        for (const auto* part : parts_) num_columns += part->num_components();
        std::vector<float> values;
        values.reserve(num_rows_ * num_columns);
        for (std::int64_t row = 0; row < num_rows_; ++row) {
            for (const auto* part : parts_) {
                for (std::int32_t c = 0; c < part->num_components(); ++c)
                    values.push_back(static_cast<float>(part->value(part->num_rows() == 1 ? 0 : row, c)));
            }
            if (last) values.push_back(static_cast<float>(*last));
        }
        return DataArray::from(name, std::move(values), num_columns);
    }

private:
    std::int64_t num_rows_;
    std::vector<const DataArray*> parts_;
};

/// Whether two arrays have the same distinct whole numbers, one for each row, in different orders.
bool are_moved_ids(const DataArray& first, const DataArray& other)
{
    const bool are_texts = first.type() == ScalarType::String || other.type() == ScalarType::String;
    if (are_texts || first.num_components() != 1 || first.num_values() != other.num_values()) return false;
    for (std::int64_t row = 0; row < first.num_rows(); ++row)  // ends at once for fields
        if (first.value(row) != std::floor(first.value(row))) return false;
    auto ids = first.to_doubles(), others = other.to_doubles();
    if (ids == others) return false;
    std::ranges::sort(ids);
    std::ranges::sort(others);
    return ids == others && std::ranges::adjacent_find(ids) == ids.end();
}

/// What is learnt of a field: the next state, or its change.
DataArray learnt(const DataArray& now, const DataArray& next, const FieldConfig& field, LearntState kind, double step)
{
    std::vector<float> values;
    values.reserve(next.num_values());
    for (std::int64_t row = 0; row < next.num_rows(); ++row) {
        for (std::int32_t c = 0; c < next.num_components(); ++c) {
            auto value = next.value(row, c);
            if (kind != LearntState::Next) value -= now.value(row, c);
            if (kind == LearntState::Rate) value /= step;
            values.push_back(static_cast<float>(value));
        }
    }
    return DataArray::from(field.from, std::move(values), next.num_components());
}

}  // namespace

bool StateArrays::tells_motion() const
{
    return std::ranges::find(fields, kCoordinates, &FieldConfig::state) != fields.end() ||
           (!given.empty() && given.back() == kCoordinates);
}

StateArrays::StateArrays(const DataConfig& data)
    : on_cells(data.on_cells), fields(data.fields), categories(data.categories), arrays(data.told_arrays()),
      given(data.series.given), mask(data.mask), kept({data.normals, data.distances}), learnt(data.series.learnt),
      history(data.series.history)
{
}

std::string StateArrays::description() const
{
    std::string names;
    for (const auto& field : fields) names += fmt::format(" {}:{}", field.name, field.state);
    return fmt::format("{} states{} told {} given {} keep {} learn {} of {}", on_cells ? "cell" : "point", names,
                       fmt::join(arrays, " "), fmt::join(given, " "), fmt::join(kept, " "), static_cast<int>(learnt),
                       history);
}

Mesh read_state(const SeriesState& state)
{
    ReadOptions options;
    options.time = state.time_in_file;
    return read_mesh(state.file, options);
}

std::string state_text(const std::string& where, const SeriesState& state)
{
    return fmt::format("{}, the state at {:g} ({})", where, state.time, state.file.string());
}

ReadState::ReadState(const Mesh& mesh, bool on_cells, const SeriesState& state, const std::string& where)
    : arrays(&arrays_at(mesh, on_cells)), constants(&mesh.field_data), points(on_cells ? nullptr : &mesh.points),
      num_rows(on_cells ? mesh.num_cells() : mesh.num_points()), on_cells(on_cells), where(state_text(where, state)),
      place([](std::int64_t row) { return fmt::format("row {}", row); })
{
}

ReadState::ReadState(const std::vector<DataArray>& arrays, const std::vector<DataArray>& constants,
                     std::int64_t num_rows, bool on_cells, std::string where,
                     std::function<std::string(std::int64_t)> place, std::function<bool(std::int64_t)> counts)
    : arrays(&arrays), constants(&constants), points(nullptr), num_rows(num_rows), on_cells(on_cells),
      where(std::move(where)), place(std::move(place)), counts(std::move(counts))
{
}

DataArray told_besides(const ReadState& state, const ReadState* given, double step, const StateArrays& arrays)
{
    Columns columns(state.num_rows);
    for (std::size_t i = 0; i < arrays.arrays.size(); ++i) {
        const auto& values = values_of(state, arrays.arrays[i]);
        columns.add(values);
        if (i < arrays.categories.names.size())
            require_categories(values, arrays.categories, i, state.where, state.place, state.counts);
    }
    for (const auto& name : arrays.given) columns.add(values_of(*given, name));
    return columns.joined(kTold, step);
}

DataArray told_fields(const ReadState& state, const StateArrays& arrays)
{
    Columns columns(state.num_rows);
    for (const auto& field : arrays.fields) columns.add(values_of(state, field.state));
    return columns.joined(kTold);
}

DataArray told(std::span<const ReadState> states, const ReadState* given, double step, const StateArrays& arrays)
{
    Columns columns(states.front().num_rows);
    for (const auto& state : states)
        for (const auto& field : arrays.fields) columns.add(values_of(state, field.state));
    const auto besides = told_besides(states.front(), given, step, arrays);
    columns.add(besides);
    return columns.joined(kTold);
}

std::vector<DataArray> learnt_fields(const ReadState& now, const ReadState& next, double step,
                                     const StateArrays& arrays)
{
    std::vector<DataArray> fields;
    for (const auto& field : arrays.fields) {
        const auto &before = values_of(now, field.state), &then = values_of(next, field.state);
        if (before.num_components() != then.num_components())
            throw InvalidInput("{}: the array '{}' has {} components, and {} in the state before.", next.where,
                               field.state, then.num_components(), before.num_components());
        fields.push_back(learnt(before, then, field, arrays.learnt, step));
    }
    return fields;
}

void add_told(Mesh& mesh, std::span<const ReadState> states, const ReadState* given, double step,
              const StateArrays& arrays)
{
    auto& into = arrays_at(mesh, arrays.on_cells);
    auto joined = told(states, given, step, arrays);
    std::erase_if(into, [](const DataArray& array) { return array.name() == kTold; });
    into.push_back(std::move(joined));
}

void require_same_rows(const Mesh& first, const Mesh& state, const SeriesState& of_state, const std::string& where)
{
    const auto refuse = [&](const std::string& what) {
        throw InvalidInput("{}: {}. The points of a run may move, but not come and go: interpolate its "
                           "states onto the mesh of one of them (meshard interpolate).",
                           state_text(where, of_state), what);
    };
    if (first.num_points() != state.num_points() || first.num_cells() != state.num_cells())
        refuse(fmt::format("it has {} points and {} cells, and another state of the run {} and {}", state.num_points(),
                           state.num_cells(), first.num_points(), first.num_cells()));
    if (first.cells != state.cells) refuse("its cells have other points than those of another state of the run");
    for (auto group : {&Mesh::point_data, &Mesh::cell_data})
        for (const auto& array : first.*group)
            if (const auto* ids = find_array(state.*group, array.name()); ids && are_moved_ids(array, *ids))
                throw InvalidInput(
                    "{}: the array '{}' has the same numbers as in another state of the run in "
                    "another order: its rows are other {}. Sort each state by it, or leave the array out if it "
                    "is no id.",
                    state_text(where, of_state), array.name(), group == &Mesh::point_data ? "points" : "cells");
}

/// @throws InvalidInput if points move by more than the rounding of single precision
static void require_same_places(const Mesh& mesh, const Mesh& next, const SeriesState& of_next,
                                const std::string& where)
{
    if (std::ranges::equal(mesh.points.bytes(), next.points.bytes())) return;
    constexpr double kRounding = 1e-6;  // of the largest coordinate
    const auto before = mesh.points.to_doubles(), then = next.points.to_doubles();
    double largest = 0, farthest = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
        largest = std::max(largest, std::abs(before[i]));
        farthest = std::max(farthest, std::abs(then[i] - before[i]));
    }
    if (farthest <= kRounding * largest) return;
    throw InvalidInput("{}: its points lie up to {:.3g} from where they were in the state before, and the "
                       "model neither learns nor is told how they move. Set data.fields.place=points or "
                       "data.given=[points], with data.association=point.",
                       state_text(where, of_next), farthest);
}

Mesh read_step(const RunStep& step, const StateArrays& arrays, const std::string& where)
{
    std::vector<Mesh> told;
    for (std::int64_t back = 0; back < arrays.history; ++back) told.push_back(read_state(step.told(back)));
    const auto next = read_state(step.next());
    auto mesh = told.front();
    for (std::size_t back = 1; back < told.size(); ++back)
        require_same_rows(mesh, told[back], step.told(static_cast<std::int64_t>(back)), where);
    require_same_rows(mesh, next, step.next(), where);
    if (!arrays.tells_motion()) require_same_places(mesh, next, step.next(), where);

    const auto is_kept = [&](const DataArray& array) {
        return std::ranges::find(arrays.kept, array.name()) != arrays.kept.end();
    };
    for (auto* group : {&mesh.point_data, &mesh.cell_data})
        std::erase_if(*group, [&](const DataArray& array) { return !is_kept(array); });
    mesh.field_data.clear();

    std::vector<ReadState> states;
    for (std::size_t back = 0; back < told.size(); ++back)
        states.emplace_back(told[back], arrays.on_cells, step.told(static_cast<std::int64_t>(back)), where);
    const ReadState read_next(next, arrays.on_cells, step.next(), where);
    add_told(mesh, states, &read_next, step.duration(), arrays);
    for (auto& field : learnt_fields(states.front(), read_next, step.duration(), arrays))
        arrays_at(mesh, arrays.on_cells).push_back(std::move(field));
    return mesh;
}

RunCut cut_by_metis(const Mesh& mesh, std::int64_t num_parts, std::int64_t seed)
{
    RunCut cut;
    cut.graph = mesh_graph(mesh);
    const MetisOptions options{.num_parts = static_cast<std::int32_t>(num_parts),
                               .seed = static_cast<std::int32_t>(seed)};
    cut.partition = partition_with_metis(cut.graph, options);
    cut.quality = measure_quality(cut.partition, cut.graph);
    return cut;
}

std::shared_ptr<const RunCut> RunCuts::of(const RunStep& step, std::int64_t num_parts, std::int64_t seed)
{
    const std::scoped_lock lock(mutex_);
    for (const auto& [run, cut] : kept_)
        if (run == step.run) return cut;
    const auto first = read_state(step.first());
    auto cut = std::make_shared<RunCut>(cut_by_metis(first, num_parts, seed));
    cut->bounds = point_bounds(first);
    kept_.emplace_front(step.run, std::move(cut));
    if (kept_.size() > kMostRunsKept) kept_.pop_back();
    return kept_.front().second;
}

}  // namespace meshard
