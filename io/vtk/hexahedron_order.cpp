// SPDX-License-Identifier: Apache-2.0
#include "io/vtk/hexahedron_order.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace meshard {

namespace {

bool is_curved_hexahedron(std::uint8_t type)
{
    constexpr std::uint8_t lagrange = 72, bezier = 79;
    return type == lagrange || type == bezier;
}

/// Orders along the three axes; all 0 if they do not fit the number of points.
std::array<std::int64_t, 3> orders_of(const DataArray* degrees, std::int64_t cell, std::int64_t num_points)
{
    std::array<std::int64_t, 3> orders{};
    if (degrees != nullptr)
        for (int axis = 0; axis < 3; ++axis) orders[axis] = static_cast<std::int64_t>(degrees->value(cell, axis));
    else
        orders.fill(num_points == 20 ? 2 : std::llround(std::cbrt(static_cast<double>(num_points))) - 1);
    const std::int64_t num_on_edges = 4 * (orders[0] + orders[1] + orders[2] - 3);
    if (std::ranges::any_of(orders, [&](std::int64_t order) { return order < 1 || order > num_points; }) ||
        8 + num_on_edges > num_points)
        orders.fill(0);
    return orders;
}

}  // namespace

bool has_curved_hexahedra(const Mesh& mesh)
{
    return std::ranges::any_of(mesh.cell_types, is_curved_hexahedron);
}

void exchange_upright_edges(Mesh& mesh)
{
    const auto degrees = std::ranges::find_if(mesh.cell_data, [](const DataArray& array) {
        return array.attribute.find("HigherOrderDegrees") != std::string::npos && array.num_components() == 3 &&
               array.type() != ScalarType::String;
    });
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        if (!is_curved_hexahedron(mesh.cell_types[cell])) continue;
        const auto num_points = std::ssize(mesh.cells.row(cell));
        const auto orders = orders_of(degrees == mesh.cell_data.end() ? nullptr : &*degrees, cell, num_points);
        if (orders[2] < 2) continue;
        // The corners, the edges of bottom and top, and the first two upright edges precede them.
        const std::int64_t length = orders[2] - 1, begin = mesh.cells.offsets[cell] + 8 + 4 * (orders[0] - 1) +
                                                           4 * (orders[1] - 1) + 2 * length;
        const auto first = mesh.cells.indices.begin() + begin;
        std::swap_ranges(first, first + length, first + length);
    }
}

}  // namespace meshard
