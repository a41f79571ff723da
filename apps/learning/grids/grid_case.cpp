// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_case.h"

#include "apps/learning/cases/categories.h"
#include "apps/learning/settings/grid_settings.h"
#include "io/bytes/file_pattern.h"
#include "ops/grids/grid_rows.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/mesh.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

/// Whether a name of arrays stands for all that match it.
bool is_pattern(const std::string& name)
{
    return name.find('*') != std::string::npos;
}

/// Writes the values of an array as float32 into columns of `rows` from `first` on; NaN may leave rows out.
void put_columns(const DataArray& array, LeftOut* left_out, at::Tensor& rows, std::int64_t first)
{
    const std::int64_t num_components = array.num_components(), num_columns = rows.size(1);
    auto* out = rows.mutable_data_ptr<float>() + first;
    with_scalar_type(array.type(), [&]<class T>() {
        const auto* value = array.values<T>().data();
        for (std::int64_t row = 0; row < array.num_rows(); ++row, out += num_columns) {
            for (std::int64_t c = 0; c < num_components; ++c) {
                out[c] = static_cast<float>(static_cast<double>(*value++));
                if (left_out) left_out->take(row, out[c]);
            }
        }
    });
}

/// Refuses values that are not finite in columns of the rows of a box, unless these are left out.
void require_finite(const DataArray& array, const at::Tensor& rows, std::int64_t first, const GridBox& box,
                    bool on_cells, const std::string& where, const LeftOut* left_out)
{
    const auto num_columns = rows.size(1);
    std::int64_t num_bad = 0, first_bad = 0;
    const auto* values = rows.const_data_ptr<float>() + first;
    for (std::int64_t row = 0; row < rows.size(0); ++row, values += num_columns) {
        const bool is_finite =
            std::all_of(values, values + array.num_components(), [](float v) { return std::isfinite(v); });
        if (is_finite || (left_out && left_out->has(row))) continue;
        if (num_bad++ == 0) first_bad = row;
    }
    if (num_bad == 0) return;
    throw InvalidInput("{}: the array '{}' is not finite at {}{}. Repair the case or leave it out{}.", where,
                       array.name(), place_text(box, first_bad),
                       num_bad == 1 ? ""
                                    : fmt::format(", and {} other {} that this rank reads", num_bad - 1,
                                                  on_cells ? "cells" : "points"),
                       left_out ? "" : ", or say in data.mask where the grid has no values");
}

/// For each wildcard of a pattern the number that it stands for, or infinity, and the text.
using PlaceInPattern = std::vector<std::pair<double, std::string>>;

/// Returns an array's place among those that a pattern matches: by the numbers that the wildcards stand for, then by
/// the texts. None if the pattern does not match.
std::optional<PlaceInPattern> place_by(const std::string& pattern, const std::string& name)
{
    const auto texts = wildcard_texts(pattern, name);
    if (!texts) return {};
    PlaceInPattern place;
    for (const auto& [position, text] : *texts) {
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
        place.emplace_back(is_number ? number : std::numeric_limits<double>::infinity(), text);
    }
    return place;
}

/// Deals groups of rows by shares, whose sum is 1; each rank has one at least.
Extents dealt(std::int64_t num_groups, const Shares& shares)
{
    Extents parts;
    double share = 0;
    std::int64_t first = 0;
    for (auto num_left = std::ssize(shares) - 1; num_left >= 0; --num_left) {
        share += shares[parts.size()];
        const auto wanted = std::llround(share * static_cast<double>(num_groups));
        const auto end = std::clamp<std::int64_t>(wanted, first + 1, num_groups - num_left);
        parts.push_back(end - first);
        first = end;
    }
    return parts;
}

/// Rows of each rank along a direction, by shares or else alike, the most first. Cuts go through groups of rows if
/// there are too few groups for the ranks.
Extents parts_of(std::int64_t num_rows, std::int64_t rows_together, std::int64_t num_ranks, const Shares& shares = {})
{
    const bool is_apart = num_rows % rows_together != 0 || num_rows / rows_together < num_ranks;
    const auto together = is_apart ? 1 : rows_together;
    const auto num_groups = num_rows / together;
    const bool are_equal = std::ranges::adjacent_find(shares, std::not_equal_to()) == shares.end();
    auto parts = are_equal || num_groups < num_ranks ? even_extents(num_groups, num_ranks) : dealt(num_groups, shares);
    for (auto& part : parts) part *= together;
    return parts;
}

/// What the ranks at each place of an axis have together, in order of the axis.
Shares shares_along(const DeviceMesh& blocks, std::int64_t axis, const Shares& shares)
{
    Shares sums(shares.empty() ? 0 : static_cast<std::size_t>(blocks.size(axis)), 0.0);
    std::size_t stride = 1;
    for (auto later = axis + 1; later < blocks.num_axes(); ++later)
        stride *= static_cast<std::size_t>(blocks.size(later));
    for (std::size_t r = 0; r < shares.size(); ++r) sums[r / stride % sums.size()] += shares[r];
    return sums;
}

}  // namespace

LeftOut::LeftOut(std::int64_t num_rows, bool marks_nan)
    : marks_nan_(marks_nan), rows_(static_cast<std::size_t>(num_rows), 0)
{
}

void LeftOut::mark(const DataArray& mask, bool on_cells, const std::string& where)
{
    constexpr int hidden_point = 2, hidden_cell = 32;  // bits of vtkDataSetAttributes
    if (mask.num_components() != 1)
        throw InvalidInput("{}: the array '{}' has {} components; data.mask takes an array with one, which "
                           "is 0 where the grid does not count.",
                           where, mask.name(), mask.num_components());
    const bool is_of_ghosts = mask.name() == "vtkGhostType";
    for (std::int64_t row = 0; row < mask.num_rows(); ++row) {
        const auto value = mask.value(row, 0);
        rows_[row] = is_of_ghosts ? (static_cast<int>(value) & (on_cells ? hidden_cell : hidden_point)) != 0
                                  : value == 0 || std::isnan(value);
    }
}

void LeftOut::erase(at::Tensor& rows) const
{
    auto* const marks = const_cast<std::uint8_t*>(rows_.data());
    rows.masked_fill_(at::from_blob(marks, {rows.size(0), 1}, at::kByte).to(at::kBool), NAN);
}

std::vector<std::int64_t> extents_of(const ImageGrid& grid, bool on_cells, const std::string& where)
{
    std::vector<std::int64_t> extents;
    for (const int axis : {2, 1, 0}) {
        const auto count = on_cells ? grid.num_cells(axis) : grid.num_points[axis];
        if (count > 1) extents.push_back(count);
    }
    if (extents.size() < 2) {
        throw InvalidInput("{} has {} {}s in a line; a grid has at least two directions with more than one.", where,
                           extents.empty() ? "one" : std::to_string(extents.front()), on_cells ? "cell" : "point");
    }
    return extents;
}

std::string extents_text(const std::vector<std::int64_t>& extents)
{
    return fmt::format("{}", fmt::join(extents.rbegin(), extents.rend(), " x "));
}

std::vector<const DataArray*> named_arrays(const ImageGrid& grid, const std::string& name, bool on_cells,
                                           const std::string& where)
{
    const std::string group = on_cells ? "cell" : "point";
    const auto& arrays = arrays_at(grid, on_cells);
    const auto find = [&](const std::string& of_one) -> const DataArray& {
        const auto& elsewhere = on_cells ? grid.point_data : grid.cell_data;
        if (!find_array(arrays, of_one) && find_array(elsewhere, of_one)) {
            throw InvalidInput("{} has '{}' at its {}, and data.association is {}. Set data.association={}.", where,
                               of_one, on_cells ? "points" : "cells", group, on_cells ? "point" : "cell");
        }
        if (const auto left_out = grid.left_out.find(of_one); left_out != grid.left_out.end())
            throw InvalidInput("{}: the array '{}' {}", where, of_one, left_out->second);
        const auto& array = require_array(arrays, of_one, where, group);
        if (array.type() == ScalarType::String)
            throw InvalidInput("{}: the array '{}' holds texts; expected numbers.", where, array.name());
        return array;
    };
    if (!is_pattern(name)) return {&find(name)};
    std::vector<std::pair<PlaceInPattern, const DataArray*>> places;
    for (const auto& array : arrays)
        if (const auto place = place_by(name, array.name())) places.emplace_back(*place, &find(array.name()));
    if (places.empty()) throw InvalidInput("{} has no {} field that '{}' matches.", where, group, name);
    std::ranges::sort(places, {}, [](const auto& one) { return one.first; });
    std::vector<const DataArray*> all;
    for (const auto& [place, array] : places) all.push_back(array);
    return all;
}

GridRows grid_rows(const GridFile& file, const GridBox& box, const DataConfig& data, bool with_truth,
                   const std::string& where)
{
    const auto& grid = file.grid();
    GridRows rows{.extents = extents_of(grid, data.on_cells, where), .told = {}, .target = {}, .channels = {}};
    const auto find_all = [&](const std::string& name) { return named_arrays(grid, name, data.on_cells, where); };
    const auto read = [&](const DataArray& array) { return file.read(array.name(), data.on_cells, box); };
    const auto is_learnt = [&](const DataArray* array) {
        return std::ranges::any_of(data.fields, [&](const FieldConfig& field) {
            return is_pattern(field.from) ? place_by(field.from, array->name()).has_value()
                                          : field.from == array->name();
        });
    };
    std::optional<LeftOut> left_out;
    if (!data.mask.empty()) {
        left_out.emplace(box.num_rows(), data.mask == kMaskOfNan);
        if (data.mask != kMaskOfNan) left_out->mark(read(*find_all(data.mask).front()), data.on_cells, where);
    }
    std::vector<DataArray> categories;
    const auto joined = [&](const std::vector<const DataArray*>& found, std::size_t num_categories) {
        std::int64_t num_columns = 0, first = 0;
        for (const auto* array : found) num_columns += array->num_components();
        auto whole = at::empty({box.num_rows(), num_columns}, at::kFloat);
        for (const auto* array : found) {
            auto values = read(*array);
            put_columns(values, left_out ? &*left_out : nullptr, whole, first);
            first += array->num_components();
            if (categories.size() < num_categories) categories.push_back(std::move(values));
        }
        return whole;
    };
    const auto require_all_finite = [&](const std::vector<const DataArray*>& arrays, const at::Tensor& whole) {
        std::int64_t first = 0;
        for (const auto* array : arrays) {
            require_finite(*array, whole, first, box, data.on_cells, where, left_out ? &*left_out : nullptr);
            first += array->num_components();
        }
    };
    std::vector<const DataArray*> told, fields;
    for (const auto& name : data.told_arrays()) {
        auto all = find_all(name);
        if (is_pattern(name)) std::erase_if(all, is_learnt);
        if (all.empty())
            throw InvalidInput("{}: all arrays that '{}' matches are learnt. Name others in data.arrays.", where, name);
        append(told, all);
    }
    rows.told = joined(told, data.categories.names.size());
    if (with_truth) {
        for (const auto& field : data.fields) {
            const auto all = find_all(field.from);
            append(fields, all);
            rows.channels.push_back(std::accumulate(all.begin(), all.end(), std::int64_t{0}, [](auto sum, auto* array) {
                return sum + array->num_components();
            }));
        }
        rows.target = joined(fields, 0);
    }
    require_all_finite(told, rows.told);
    if (with_truth) require_all_finite(fields, rows.target);
    for (std::size_t i = 0; i < categories.size(); ++i)
        require_categories(
            categories[i], data.categories, i, where, [&](std::int64_t row) { return place_text(box, row); },
            [&](std::int64_t row) { return !left_out || !left_out->has(row); });
    if (left_out) {
        left_out->erase(rows.told);
        if (with_truth) left_out->erase(rows.target);
    }
    return rows;
}

std::string place_text(const GridBox& box, std::int64_t row)
{
    std::array<std::int64_t, 3> place{};
    for (int axis = 0; axis < 3; ++axis) {
        place[axis] = box.first[axis] + row % box.count[axis];
        row /= box.count[axis];
    }
    return fmt::format("(x, y, z) = ({}), counted from 0", fmt::join(place, ", "));
}

GridLayout grid_layout(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                       const std::shared_ptr<const DeviceMesh>& blocks, const std::string& where, const Shares& shares)
{
    const auto num_axes = static_cast<std::size_t>(blocks->num_axes());
    const auto refuse = [&](const std::string& what, const std::string& remedy) {
        std::vector<std::int64_t> shape;
        for (std::size_t axis = 0; axis < num_axes; ++axis) shape.push_back(blocks->size(axis));
        throw InvalidInput("{}: parallel.domain is [{}], and the grid is {}: {}. {}", where, fmt::join(shape, ", "),
                           extents_text(extents), what, remedy);
    };
    if (num_axes > extents.size())
        refuse(fmt::format("there are {} numbers for {} directions", num_axes, extents.size()),
               "Give at most one number of ranks a direction, slowest first.");
    std::vector<AxisLayout> axes;
    for (std::size_t i = 0; i < num_axes; ++i) {
        const auto axis = static_cast<std::int64_t>(i);
        const auto num_ranks = blocks->size(axis);
        auto parts = parts_of(extents[i], rows_together, num_ranks, shares_along(*blocks, axis, shares));
        axes.push_back({Shard(axis + 2), std::make_shared<const Extents>(std::move(parts)), 1});
    }
    const auto of_grid = make_spec(blocks, axes);
    return {extents, of_grid, layout_of_rows(of_grid, extents)};
}

std::vector<std::int64_t> cut_of_least_halo(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                                            std::int64_t num_ranks)
{
    // Rows of the largest block beside cuts, all its rows, and the number of directions that are cut.
    const auto cost = [&](const std::vector<std::int64_t>& cut) {
        std::int64_t halo = 0, size = 1, num_cut = 0;
        for (std::size_t i = 0; i < extents.size(); ++i) {
            auto face = std::min<std::int64_t>(cut[i] - 1, 2);
            for (std::size_t k = 0; k < extents.size(); ++k)
                face *= k == i ? 1 : parts_of(extents[k], rows_together, cut[k]).front();
            halo += face;
            size *= parts_of(extents[i], rows_together, cut[i]).front();
            num_cut += cut[i] > 1;
        }
        return std::tuple(halo, size, num_cut);
    };
    std::vector<std::int64_t> best(extents.size(), 1), cut(extents.size(), 1);
    best.front() = num_ranks;
    const std::function<void(std::size_t, std::int64_t)> try_from = [&](std::size_t i, std::int64_t num_left) {
        if (i == extents.size()) {
            if (num_left == 1 && cost(cut) < cost(best)) best = cut;
            return;
        }
        for (cut[i] = 1; cut[i] <= num_left; ++cut[i]) {
            const bool fits = cut[i] == 1 || cut[i] * rows_together <= extents[i];
            if (num_left % cut[i] == 0 && fits) try_from(i + 1, num_left / cut[i]);
        }
        cut[i] = 1;
    };
    try_from(0, num_ranks);
    while (best.size() > 1 && best.back() == 1) best.pop_back();
    return best;
}

std::vector<std::int64_t> cut_of_grid(const std::vector<std::int64_t>& said, const ModelConfig& model,
                                      const std::vector<std::int64_t>& extents, std::int64_t num_ranks)
{
    constexpr std::int64_t kFewest = 4;  // ranks that can cut two directions
    if (!said.empty() && c10::multiply_integers(said) == num_ranks) return said;
    if (num_ranks < kFewest || !reads_neighbors(model)) return {num_ranks};
    return cut_of_least_halo(extents, rows_together(model), num_ranks);
}

GridRanks::GridRanks(GroupFactory& world)
    : world_(world), in_a_row_(DeviceMesh::create(world, {world.size()}, {"domain"}))
{
}

const std::shared_ptr<const DeviceMesh>& GridRanks::blocks(const std::vector<std::int64_t>& cut)
{
    auto& found = blocks_[cut];
    if (!found) found = in_a_row_->folded(world_, "domain", cut);
    return found;
}

GridBox GridLayout::own_box(const ImageGrid& grid, bool on_cells) const
{
    auto box = whole_box(grid, on_cells);
    std::int64_t dim = 2;  // of the grid's tensor
    for (const int direction : {2, 1, 0}) {
        if (box.count[direction] == 1) continue;
        const auto axis = of_grid->axis_of_dim(dim++);
        if (axis < 0) continue;
        const auto me = of_grid->device_mesh->coordinate(axis);
        box.first[direction] = of_grid->axes[axis].offset(me);
        box.count[direction] = (*of_grid->axes[axis].extents)[me];
    }
    return box;
}

std::vector<std::int64_t> GridLayout::own_places() const
{
    if (of_rows->index_map) return of_rows->index_map->global_ids;
    const auto& axis = of_rows->axes[0];
    const auto me = of_rows->device_mesh->coordinate(0);
    auto places = numbers_from<std::int64_t>(axis.offset(me), (*axis.extents)[me]);
    return places;
}

at::Tensor GridLayout::joined(const at::Tensor& own) const
{
    return from_local(own.unsqueeze(0), of_rows);
}

PointInputs GridLayout::inputs(const at::Tensor& own) const
{
    return {.embedding = joined(own), .positions = {}, .grid = extents, .grid_layout = of_grid};
}

CaseTensors grid_case_tensors(const at::Tensor& told, const at::Tensor& target,
                              const std::vector<std::int64_t>& channels, const CaseSource& source,
                              const DataConfig& data, const GridLayout& layout)
{
    CaseTensors example{.id = source.id,
                        .num_points = c10::multiply_integers(layout.extents),
                        .inputs = layout.inputs(told),
                        .target = {},
                        .measures = {},
                        .channels = channels};
    if (target.defined()) example.target = layout.joined(target);
    add_case_constants(example.inputs, data, source);
    return example;
}

}  // namespace meshard
