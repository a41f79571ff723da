// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/row_weights.h"

#include "partition/error.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

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
    std::vector<std::int32_t> weights(values.size());
    std::ranges::transform(values, weights.begin(), WeightScale(total, are_integers));
    return weights;
}

std::vector<double> values_of(const Mesh& mesh, const std::string& name)
{
    const bool is_cloud = mesh.is_point_cloud();
    const auto& array =
        require_weight_array(is_cloud ? mesh.point_data : mesh.cell_data, name, is_cloud ? "point" : "cell");
    std::vector<double> values(array.num_rows());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = require_weight(array, static_cast<std::int64_t>(i));
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

}  // namespace

WeightScale::WeightScale(double total, bool are_integers)
    : factor_(are_integers && total <= total_of_scaled ? 1 : total_of_scaled / std::max(total, 1e-300))
{
    if (!std::isfinite(total))
        throw InvalidInput("row_weights: the sum of the weights is beyond 1.8e308. Divide them all by a number.");
}

std::int32_t WeightScale::operator()(double value) const
{
    return static_cast<std::int32_t>(std::min(std::llround(value * factor_), 0x7fffffffLL));
}

const DataArray& require_weight_array(std::span<const DataArray> arrays, const std::string& name,
                                      std::string_view group)
{
    const auto& array = require_array(arrays, name, "the mesh", group);
    if (array.type() == ScalarType::String)
        throw InvalidInput("row_weights: array '{}' holds texts; a weight is one number a row.", name);
    if (array.num_components() != 1)
        throw InvalidInput("row_weights: array '{}' has {} components; a weight is one number a row.", name,
                           array.num_components());
    return array;
}

double require_weight(const DataArray& array, std::int64_t row)
{
    const auto value = array.value(row);
    if (!(value >= 0) || !std::isfinite(value))
        throw InvalidInput("row_weights: array '{}' has the value {} in row {}; weights are finite and not negative.",
                           array.name(), value, row);
    return value;
}

void require_some_weight(std::span<const std::string> names, bool has_some)
{
    if (!has_some)
        throw InvalidInput("row_weights: all rows have the weight 0 by {}, so that nothing is to be "
                           "balanced. Leave out the weights, or choose others.",
                           fmt::join(names, ", "));
}

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
            throw InvalidInput("row_weights: unknown weight '{}'; known are cells, points, faces and array:NAME.",
                               name);
        }
        const auto integers = to_integers(values);
        for (std::size_t i = 0; i < num_rows; ++i) weights[i * names.size() + w] = integers[i];
    }
    require_some_weight(names, weights.empty() || std::ranges::any_of(weights, [](auto weight) { return weight > 0; }));
    return weights;
}

std::vector<std::int32_t> weights_from_costs(const std::vector<std::int32_t>& earlier_owners,
                                             std::span<const double> costs)
{
    std::vector<double> sizes(costs.size(), 0);
    for (const auto owner : earlier_owners) {
        if (owner < 0 || owner >= static_cast<std::int32_t>(costs.size()))
            throw InvalidInput("weights_from_costs: there are {} costs, but a row is of part {}.", costs.size(), owner);
        ++sizes[owner];
    }
    for (const auto cost : costs)
        if (!(cost > 0) || !std::isfinite(cost))
            throw InvalidInput("weights_from_costs: a part costs {}; expected a positive number.", cost);
    std::vector<double> values(earlier_owners.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = costs[earlier_owners[i]] / sizes[earlier_owners[i]];
    return to_integers(values);
}

}  // namespace meshard
