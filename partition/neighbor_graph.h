// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "partition/csr.h"
#include "partition/data_array.h"

namespace meshard {

/// Each point's `k` nearest other points, nearest first, ties by index; fewer if there are fewer points.
/// By a k-d tree (nanoflann). @param points (num_points, 3). @throws InvalidInput on a NaN or infinite coordinate or k < 1.
Csr nearest_neighbors(const DataArray& points, std::int32_t k);

/// Undirected graph: an edge wherever one point is among the k nearest of the other. Symmetric, rows ascending.
Csr nearest_neighbor_graph(const DataArray& points, std::int32_t k);

/// Undirected graph: an edge between points at most `radius` apart. Symmetric, no loops, rows ascending.
/// @throws InvalidInput as `nearest_neighbors`, if the radius is not positive, or if there are more than 2^33 neighbours.
Csr radius_graph(const DataArray& points, double radius);

}  // namespace meshard
