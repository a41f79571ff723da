// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/grids/grid_case.h"

#include "apps/learning/cases/run_step.h"
#include "ops/grids/grid_rows.h"
#include "partition/error.h"
#include "partition/mesh/mesh.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

namespace meshard {
namespace {

/// Converts an array to float32: (N, components).
at::Tensor rows_of(const DataArray& array, const ImageGrid& grid, bool on_cells, const std::string& where)
{
    const auto num_components = array.num_components();
    if (array.type() == ScalarType::String)
        throw InvalidInput(fmt::format("{}: the array '{}' holds texts; expected numbers.", where, array.name()));
    const auto rows = torch::tensor(array.to_doubles(), torch::kDouble).view({-1, num_components}).to(torch::kFloat);
    const auto bad = torch::nonzero(torch::isfinite(rows).all(1).logical_not()).flatten();
    if (bad.numel() == 0) return rows;
    auto row = bad[0].item<std::int64_t>();
    std::array<std::int64_t, 3> place{};
    for (int axis = 0; axis < 3; ++axis) {
        const auto count = on_cells ? grid.num_cells(axis) : grid.num_points[axis];
        place[axis] = row % count;
        row /= count;
    }
    throw InvalidInput(fmt::format("{}: the array '{}' is not finite at {} {}, first at (x, y, z) = ({}), counted from "
                                   "0. Repair the case or leave it out.",
                                   where, array.name(), bad.numel(), on_cells ? "cells" : "points",
                                   fmt::join(place, ", ")));
}

/// Returns the numbers of rows along the directions with more than one, slowest first.
std::vector<std::int64_t> extents_of(const ImageGrid& grid, bool on_cells, const std::string& where)
{
    std::vector<std::int64_t> extents;
    for (const int axis : {2, 1, 0}) {
        const auto count = on_cells ? grid.num_cells(axis) : grid.num_points[axis];
        if (count > 1) extents.push_back(count);
    }
    if (extents.size() < 2) {
        throw InvalidInput(
            fmt::format("{} has {} {}s in a line; a grid has at least two directions with more than one.", where,
                        extents.empty() ? "one" : std::to_string(extents.front()), on_cells ? "cell" : "point"));
    }
    return extents;
}

}  // namespace

std::string extents_text(const std::vector<std::int64_t>& extents)
{
    return fmt::format("{}", fmt::join(extents.rbegin(), extents.rend(), " x "));
}

GridRows grid_rows(const ImageGrid& grid, const DataConfig& data, bool with_truth, const std::string& where)
{
    GridRows rows{.extents = extents_of(grid, data.on_cells, where), .told = {}, .target = {}, .channels = {}};
    const std::string group = data.on_cells ? "cell" : "point";
    const auto& arrays = data.on_cells ? grid.cell_data : grid.point_data;
    const auto find = [&](const std::string& name) -> const DataArray& {
        const auto& elsewhere = data.on_cells ? grid.point_data : grid.cell_data;
        if (!find_array(arrays, name) && find_array(elsewhere, name)) {
            throw InvalidInput(
                fmt::format("{} has '{}' at its {}, and data.association is {}. Set data.association={}.", where, name,
                            data.on_cells ? "points" : "cells", group, data.on_cells ? "point" : "cell"));
        }
        return require_array(arrays, name, where, group);
    };
    std::vector<at::Tensor> told, fields;
    for (const auto& name : data.arrays) told.push_back(rows_of(find(name), grid, data.on_cells, where));
    rows.told = torch::cat(told, 1);
    if (!with_truth) return rows;
    for (const auto& field : data.fields) {
        fields.push_back(rows_of(find(field.from), grid, data.on_cells, where));
        rows.channels.push_back(fields.back().size(1));
    }
    rows.target = torch::cat(fields, 1);
    return rows;
}

GridRows grid_rows_of_step(const Mesh& states, ImageGrid grid, DataConfig data, bool with_truth,
                           const std::string& where)
{
    data.arrays = {kTold};
    grid.point_data = states.point_data;
    grid.cell_data = states.cell_data;
    return grid_rows(grid, data, with_truth, where);
}

GridLayout grid_layout(const std::vector<std::int64_t>& extents, std::int64_t rows_together,
                       const std::shared_ptr<const DeviceMesh>& blocks, const std::string& where)
{
    const auto num_axes = static_cast<std::size_t>(blocks->num_axes());
    const auto refuse = [&](const std::string& what, const std::string& remedy) {
        std::vector<std::int64_t> shape;
        for (std::size_t axis = 0; axis < num_axes; ++axis) shape.push_back(blocks->size(axis));
        throw InvalidInput(fmt::format("{}: parallel.domain is [{}], and the grid is {}: {}. {}", where,
                                       fmt::join(shape, ", "), extents_text(extents), what, remedy));
    };
    if (num_axes > extents.size())
        refuse(fmt::format("there are {} numbers for {} directions", num_axes, extents.size()),
               "Give at most one number of ranks a direction, slowest first.");
    std::vector<AxisLayout> axes;
    for (std::size_t i = 0; i < num_axes; ++i) {
        const auto num_ranks = blocks->size(static_cast<std::int64_t>(i));
        if (num_axes > 1 && num_ranks > extents[i])
            refuse(fmt::format("direction {} has {} rows for {} ranks", i + 1, extents[i], num_ranks),
                   "Cut it into at most as many blocks as it has rows.");
        // Cuts go through groups of rows if there are too few groups for the ranks.
        const bool is_apart = extents[i] % rows_together != 0 || extents[i] / rows_together < num_ranks;
        const auto together = is_apart ? 1 : rows_together;
        auto of_ranks = even_extents(extents[i] / together, num_ranks);
        for (auto& extent : of_ranks) extent *= together;
        axes.push_back({Shard(static_cast<std::int64_t>(i) + 2), std::make_shared<const Extents>(of_ranks), 1});
    }
    const auto of_grid = make_spec(blocks, axes);
    return {extents, of_grid, layout_of_rows(of_grid, extents)};
}

at::Tensor GridLayout::own_rows(const at::Tensor& rows) const
{
    const auto grid = grid_of_rows(rows.unsqueeze(0), extents, nullptr);
    return rows_of_grid(from_local(own_part(grid, *of_grid).clone(), of_grid), of_rows);
}

PointInputs GridLayout::inputs(const at::Tensor& told) const
{
    return {.embedding = own_rows(told), .positions = {}, .grid = extents, .grid_layout = of_grid};
}

CaseTensors grid_case_tensors(const GridRows& rows, const CaseSource& source, const DataConfig& data,
                              const GridLayout& layout)
{
    CaseTensors example{.id = source.id,
                        .num_points = rows.told.size(0),
                        .inputs = layout.inputs(rows.told),
                        .target = {},
                        .measures = {},
                        .channels = rows.channels};
    if (rows.target.defined()) example.target = layout.own_rows(rows.target);
    add_case_constants(example.inputs, data, source);
    return example;
}

}  // namespace meshard
