// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace meshard {

/// A grid of vertices over a box, fine along two directions and coarse along the third: one of the planes of a
/// factorised grid.
struct GridPlane {
    std::array<std::int64_t, 3> resolution{};  ///< number of vertices along x, y, z
    std::int64_t flat_axis = 0;                ///< the coarse direction, 0 to 2
    std::array<double, 3> box_min{}, box_max{};

    std::int64_t num_vertices() const { return resolution[0] * resolution[1] * resolution[2]; }
    /// Scale of coordinates in which searches measure distances: vertices over length, along each axis.
    std::array<double, 3> scale() const;

    /// (X Y Z, 3), z fastest, in single precision, ends included. @param device   device of the result
    at::Tensor vertices(const at::Device& device) const;
};

/// Points and vertices that exchange messages: entry e connects point `points[e]` and vertex `vertices[e]`, int64 row
/// numbers, sorted by point.
struct PlanePairs {
    at::Tensor points;
    at::Tensor vertices;
};

/// All pairs at most sqrt(3) apart in scaled coordinates, about 22 for each point. Each point tests the few vertices
/// around it; no communication.
/// @param points   (N, 3), plain; distances are computed in single precision
PlanePairs pairs_in_reach(const at::Tensor& points, const GridPlane& plane);

/// Each point with its k nearest vertices in scaled coordinates. No communication. @param points   as for
/// `pairs_in_reach`
PlanePairs nearest_vertices(const at::Tensor& points, const GridPlane& plane, std::int64_t k);

/// Each vertex with its k nearest points on all ranks: the pairs whose point this rank owns. Collective if the points
/// are cut.
/// @param cloud   (N, 3), plain or cut along N  @throws InvalidInput if there are not more than k points
PlanePairs nearest_points(const at::Tensor& cloud, const GridPlane& plane, std::int64_t k);

}  // namespace meshard
