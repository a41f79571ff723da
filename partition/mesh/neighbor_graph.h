// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/data_array.h"

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// Each point's `k` nearest other points, nearest first, ties by index; fewer if there are fewer points. Uses a k-d
/// tree (nanoflann).
/// @param points (num_points, 3). @throws InvalidInput for a NaN or infinite coordinate or k < 1.
Csr nearest_neighbors(const DataArray& points, std::int32_t k);

/// Undirected graph: an edge wherever one point is among the k nearest of the other. Symmetric, rows ascending.
Csr nearest_neighbor_graph(const DataArray& points, std::int32_t k);

/// Undirected graph: an edge for every entry of `directed`. Symmetric, rows ascending.
Csr symmetric_graph(const Csr& directed);

/// Undirected graph: an edge between points at most `radius` apart. Symmetric, no loops, rows ascending.
/// @throws InvalidInput as `nearest_neighbors`, if the radius is not positive, or if there are more than 2^33
/// neighbours.
Csr radius_graph(const DataArray& points, double radius);

/// Finds the points near given positions, with the same distances to the last bit as the graphs above. Const functions
/// are thread-safe.
class PointTree {
public:
    struct Found {
        double squared_distance;
        std::int32_t point;

        auto operator<=>(const Found&) const = default;
    };

    /// @param points (num_points, 3), copied. @throws InvalidInput as `nearest_neighbors`.
    explicit PointTree(const DataArray& points);
    ~PointTree();

    /// The `k` nearest points with a squared distance of at most `most_squared`, nearest first, ties by index.
    std::vector<Found> nearest(const std::array<double, 3>& position, std::int32_t k, double most_squared) const;

    /// Returns whether a point is at most `radius` away.
    bool has_any_within(const std::array<double, 3>& position, double radius) const;

private:
    struct Search;

    std::unique_ptr<Search> search_;
};

}  // namespace meshard
