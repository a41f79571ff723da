// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops/search/point_search.h"

namespace meshard {

/// Whether a walk with this radius can number the cells around these places. @throws InvalidInput if one is nearly 2^30 cells from zero or more
template <class T>
void require_grid_cells(std::span<const T> coordinates, const RadiusLimit& limit);

/// The points within `radius` of each query in the order of a walk over a grid, the first `max_neighbors` of them: which neighbours the published
/// weights of GeoTransolver were trained with. Not nearest first, but as independent of the order of points on ranks.
///
/// In single precision whatever the type: cells are radius / 2 wide and numbered floor(x * (1 / width)); a query visits the cells from
/// floor((q - radius) / width) to floor((q + radius) / width), x fastest, then y, then z, and the points of a cell by ascending id; a point is inside if
/// its squared distance is at most radius * radius.
///
/// @param points, queries  (n, 3), (m, 3)
/// @throws InvalidInput as PointSearch does, and as `require_grid_cells`
template <class T>
NeighborLists<T> neighbors_in_grid_order(std::span<const T> points, std::span<const T> queries, const RadiusLimit& limit);

}  // namespace meshard
