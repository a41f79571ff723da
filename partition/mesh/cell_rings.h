// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/cell_type.h"
#include "partition/mesh/mesh.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

/// Number of corners of a polygon of that shape; points between them come after the corners.
inline std::size_t num_corners(CellShape shape, std::size_t num_points)
{
    switch (shape) {
    case CellShape::Triangle:
        return std::min<std::size_t>(num_points, 3);
    case CellShape::Quad:
        return std::min<std::size_t>(num_points, 4);
    case CellShape::QuadraticPolygon:
        return num_points / 2;
    default:
        return num_points;
    }
}

/// Calls `f` with the corners of each ring of edges of cell `i`: one for a polygon, one for each triangle of a strip,
/// none for cells that are no polygons.
template <class F>
void for_each_ring(const Mesh& mesh, std::int64_t i, std::vector<std::int32_t>& ring, F&& f)
{
    const CellType& type = cell_type_of(mesh.cell_types[i]);
    const auto points = mesh.cells.row(i);
    if (type.dimension != 2 || points.empty()) return;
    if (type.shape == CellShape::Strip) {
        // Every other triangle of a strip has the opposite orientation.
        for (std::size_t k = 0; k + 2 < points.size(); ++k) {
            const std::size_t odd = k % 2;
            ring.assign({points[k + odd], points[k + 1 - odd], points[k + 2]});
            f(std::span<const std::int32_t>(ring));
        }
        return;
    }
    ring.assign(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(num_corners(type.shape, points.size())));
    if (type.shape == CellShape::Pixel && ring.size() == 4) std::swap(ring[2], ring[3]);
    f(std::span<const std::int32_t>(ring));
}

}  // namespace meshard
