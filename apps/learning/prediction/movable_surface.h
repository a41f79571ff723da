// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"
#include "sharding/ranks/rank_group.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// A surface whose measures are torch operations of its points, in double precision, so that they have derivatives.
/// How cells and points are connected stays as it is. Every rank holds all points and cells. Values are those of
/// `area_vectors`, `row_places`, `row_geometry` and `surface_triangles`, up to rounding.
class MovableSurface {
public:
    /// Copies the surface of the first rank to all; `whole` is ignored on the others. Collective.
    MovableSurface(const Mesh& whole, const RankGroup& ranks, const at::Device& device);

    const at::Tensor& points() const { return points_; }  ///< (P, 3): a leaf that requires gradients
    std::int64_t num_apart() const;                       ///< points of cells at the place of another one
    at::Tensor cell_places() const;                       ///< (C, 3): the mean of each cell's points
    at::Tensor area_vectors() const;                      ///< (C, 3): zero for cells that are no polygons
    at::Tensor centroids() const;                         ///< (C, 3): of areas, by `surface_centroids`

    /// (C, ...) to (P, ...): adds up the values of the cells around each point.
    at::Tensor sums_at_points(const at::Tensor& of_cells) const;
    /// The same of equal shares, which each cell hands to its points.
    at::Tensor shares_at_points(const at::Tensor& of_cells) const;
    /// (P) to (C): the mean of the values at each cell's points.
    at::Tensor means_in_cells(const at::Tensor& of_points) const;

    /// (V, 3): the points of `surface_triangles`, which follow the surface.
    at::Tensor triangle_vertices() const;
    const at::Tensor& triangles() const { return triangles_; }  ///< (T, 3): their indices

private:
    at::Tensor corners_of_triangles() const;  // (T, 3, 3)

    std::int64_t num_cells_ = 0;
    at::Tensor points_;
    at::Tensor corners_, cell_of_corner_, counts_;                 // all points of cells, and how many a cell has
    at::Tensor triangles_, cell_of_triangle_, ring_of_triangle_;   // (T, 3), (T) and (T)
    at::Tensor ring_points_, middle_of_ring_point_, ring_counts_;  // of polygons with more than three corners
};

/// (N, 3) to (N). The derivative of a length of zero is zero.
at::Tensor lengths_of(const at::Tensor& vectors);

}  // namespace meshard
