// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Coordinates of the neighbours of each query, for each radius: (B, M, K * D), where K is the radius' `max_neighbors`.
/// A row concatenates the coordinates of the query's neighbours, padded with zeros if it has fewer than K.
///
/// Points and queries are plain, Replicate, or cut along dimension 1, independently; the result has the layout of the
/// queries (Replicate for whole queries and cut points). Neighbours and their order do not depend on the ranks.
/// Differentiable in the coordinates of the points, not of the queries; gradients are sent to the owners. Collective if
/// points or queries are cut.
///
/// @param points    (B, N, D)
/// @param queries   (B, M, D)
/// @throws InvalidInput as `radius_search`, for other placements, and if a limit has no `max_neighbors`
std::vector<at::Tensor> ball_query(const at::Tensor& points, const at::Tensor& queries,
                                   const std::vector<RadiusLimit>& limits, NeighborOrder order);

/// The neighbours of `ball_query` as ids within their cloud: (B, M, K) int64, zero if a query has fewer than K.
/// @throws InvalidInput as `ball_query`
std::vector<at::Tensor> ball_indices(const at::Tensor& points, const at::Tensor& queries,
                                     const std::vector<RadiusLimit>& limits, NeighborOrder order);

}  // namespace meshard
