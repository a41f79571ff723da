// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/balance_target.h"
#include "partition/cut/partition.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Centroid of each row, (rows, 3): the mean of a cell's points; for a cloud, the point. Zeros for a cell without
/// points.
/// @param origin   they are relative to it: single precision would not resolve them far from it
template <class T = float>
std::vector<T> row_centroids(const Mesh& mesh, const std::array<double, 3>& origin = {});

/// The first point of a mesh; (0, 0, 0) if it has none.
std::array<double, 3> first_point(const Mesh& mesh);

/// Recursive coordinate bisection (Berger and Bokhari 1987): cuts the rows in two across the longest side of their
/// bounding box, in proportion to the capacities of the parts on each side, and so on. Ties by row. Without weights,
/// parts are equal within one row; with several, each row counts with the mean of its shares.
/// @param centroids (rows, 3). @throws InvalidInput if sizes disagree or the balance does not fit.
Partition partition_by_bisection(std::span<const float> centroids, std::int32_t num_parts,
                                 const BalanceTarget& balance);

/// Runs of equal weight along the Hilbert curve through the rows' bounding box. Ties by row. The fastest method; parts
/// may be disconnected. Weights, parameters and errors as for bisection.
Partition partition_by_curve(std::span<const float> centroids, std::int32_t num_parts, const BalanceTarget& balance);

}  // namespace meshard
