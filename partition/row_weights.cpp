// SPDX-License-Identifier: Apache-2.0
#include "partition/row_weights.h"

#include "partition/error.h"

#include <algorithm>
#include <cmath>

namespace meshard {

namespace {

constexpr double total_of_scaled = 0x1p30;

std::vector<std::int32_t> to_integers(const std::vector<double>& values)
{
    double total = 0;
    bool are_integers = true;
    for (const auto value : values) {
        total += value;
        are_integers &= value == std::floor(value);
    }
    const double scale = are_integers && total <= total_of_scaled ? 1 : total_of_scaled / std::max(total, 1e-300);
    std::vector<std::int32_t> weights(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        weights[i] = static_cast<std::int32_t>(std::min(std::llround(values[i] * scale), 0x7fffffffLL));
    return weights;
}

std::vector<double> values_of(const Mesh& mesh, const std::string& name)
{
    const auto& array = require_array(mesh.is_point_cloud() ? mesh.point_data : mesh.cell_data, name, "row_weights",
                                      mesh.is_point_cloud() ? "point" : "cell");
    if (array.num_components() != 1)
        throw InvalidInput("row_weights: array '" + name + "' has " + std::to_string(array.num_components()) +
                           " components; a weight is one number a row.");
    auto values = array.to_doubles();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (!(values[i] >= 0) || !std::isfinite(values[i]))
            throw InvalidInput("row_weights: array '" + name + "' has the value " + std::to_string(values[i]) +
                               " in row " + std::to_string(i) + "; weights are finite and not negative.");
    return values;
}

std::vector<double> owned_points(const Mesh& mesh)
{
    std::vector<double> counts(mesh.num_rows(), mesh.is_point_cloud() ? 1 : 0);
    if (mesh.is_point_cloud()) return counts;
    std::vector<bool> is_owned(mesh.num_points(), false);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell)
        for (const auto point : mesh.cells.row(cell))
            if (!is_owned[point]) {
                is_owned[point] = true;
                ++counts[cell];
            }
    return counts;
}

} // namespace

std::vector<std::int32_t> row_weights(const Mesh& mesh, const Csr& graph, std::span<const std::string> names)
{
    const auto num_rows = static_cast<std::size_t>(mesh.num_rows());
    std::vector<std::int32_t> weights(num_rows * names.size());
    for (std::size_t w = 0; w < names.size(); ++w) {
        const auto& name = names[w];
        std::vector<double> values(num_rows, 1);
        if (name == "points") {
            values = owned_points(mesh);
        } else if (name == "faces") {
            for (std::size_t i = 0; i < num_rows; ++i)
                values[i] = 1 + static_cast<double>(graph.row(static_cast<std::int64_t>(i)).size());
        } else if (name.starts_with("array:")) {
            values = values_of(mesh, name.substr(6));
        } else if (name != "cells") {
            throw InvalidInput("row_weights: unknown weight '" + name +
                               "'; known are cells, points, faces and array:NAME.");
        }
        const auto integers = to_integers(values);
        for (std::size_t i = 0; i < num_rows; ++i) weights[i * names.size() + w] = integers[i];
    }
    return weights;
}

std::vector<std::int32_t> weights_from_costs(const std::vector<std::int32_t>& earlier_owners,
                                             std::span<const double> costs)
{
    std::vector<double> sizes(costs.size(), 0);
    for (const auto owner : earlier_owners) {
        if (owner < 0 || owner >= static_cast<std::int32_t>(costs.size()))
            throw InvalidInput("weights_from_costs: there are " + std::to_string(costs.size()) +
                               " costs, but a row is of part " + std::to_string(owner) + ".");
        ++sizes[owner];
    }
    for (const auto cost : costs)
        if (!(cost > 0) || !std::isfinite(cost))
            throw InvalidInput("weights_from_costs: a part costs " + std::to_string(cost) +
                               "; expected a positive number.");
    std::vector<double> values(earlier_owners.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = costs[earlier_owners[i]] / sizes[earlier_owners[i]];
    return to_integers(values);
}

} // namespace meshard
