// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Coordinates of the neighbours of each query within some radii: of each radius (B, M, K * D) with K its `max_neighbors`, neighbour after neighbour, and
/// zeros where a query has fewer.
///
/// Points and queries are plain, Replicate, or cut along dimension 1, each in its own way; the result lies as the queries do (Replicate for whole queries
/// among cut points). Which neighbours are found, and their order, does not depend on the ranks. Only the points' coordinates are differentiable, as
/// values; gradients return to the owners. Collective where points or queries are cut.
///
/// @param points    (B, N, D)
/// @param queries   (B, M, D)
/// @throws InvalidInput as `radius_search`, on other placements, and if a limit has no `max_neighbors`
std::vector<at::Tensor> ball_query(const at::Tensor& points, const at::Tensor& queries, const std::vector<RadiusLimit>& limits, NeighborOrder order);

}  // namespace meshard
