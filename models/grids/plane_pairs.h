// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace meshard {

/// A grid of vertices over a box, fine along two directions and coarse along the third: one of the planes of a factorised grid.
struct GridPlane {
    std::array<std::int64_t, 3> resolution{};  ///< vertices along x, y, z
    std::int64_t flat_axis = 0;                ///< the coarse direction, 0 to 2
    std::array<double, 3> box_min{}, box_max{};

    std::int64_t num_vertices() const { return resolution[0] * resolution[1] * resolution[2]; }
    std::array<double, 3> scale() const;  ///< of coordinates in which searches measure: vertices over length, along each axis

    /// (X Y Z, 3), z fastest, in single precision, ends included. @param device   of the result
    at::Tensor vertices(const at::Device& device) const;
};

/// Points and vertices that exchange messages: entry e joins point `points[e]` and vertex `vertices[e]`, int64 row numbers, by ascending point.
struct PlanePairs {
    at::Tensor points;
    at::Tensor vertices;
};

/// All pairs not further apart than sqrt(3) in scaled coordinates, about 22 a point. Each point looks at the few vertices around it: no communication.
/// @param points   (N, 3), plain; distances are computed in single precision
PlanePairs pairs_in_reach(const at::Tensor& points, const GridPlane& plane);

/// Each point with its k nearest vertices in scaled coordinates. No communication. @param points   as above
PlanePairs nearest_vertices(const at::Tensor& points, const GridPlane& plane, std::int64_t k);

/// Each vertex with its k nearest points of all ranks: the pairs whose point this rank owns. Collective if the points are cut.
/// @param cloud   (N, 3), plain or cut along N  @throws InvalidInput if there are not more than k points
PlanePairs nearest_points(const at::Tensor& cloud, const GridPlane& plane, std::int64_t k);

}  // namespace meshard
