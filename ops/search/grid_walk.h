// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/search/point_search.h"

#include <span>

namespace meshard {

/// Checks that the cells around these positions can be numbered in 32 bits for this radius. @throws InvalidInput if a
/// position is about 2^30 cells or more from zero
template <class T>
void require_grid_cells(std::span<const T> coordinates, const RadiusLimit& limit);
[[noreturn]] void refuse_grid_order(double coordinate, double radius);

/// The first `max_neighbors` points within `radius` of each query, in the order of a walk over a grid: the neighbours
/// with which the published weights of GeoTransolver were trained. They are not sorted by distance, and do not depend
/// on the distribution of points over ranks.
///
/// Computed in single precision for any type: cells are radius / 2 wide and numbered floor(x * (1 / width)); a query
/// visits the cells from floor((q - radius) / width) to floor((q + radius) / width), x fastest, then y, then z, and the
/// points of a cell by ascending id; a point is inside if its squared distance is at most radius * radius.
///
/// @param points, queries  (n, 3), (m, 3)
/// @throws InvalidInput as PointSearch, and as `require_grid_cells`
template <class T>
NeighborLists<T> neighbors_in_grid_order(std::span<const T> points, std::span<const T> queries,
                                         const RadiusLimit& limit);

}  // namespace meshard
