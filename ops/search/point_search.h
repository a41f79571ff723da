// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Neighbours of each query, nearest first, ties by ascending id: query i has the entries offsets[i], ..., offsets[i +
/// 1] - 1.
template <class T>
struct NeighborLists {
    std::vector<std::int64_t> offsets{0};
    std::vector<std::int32_t> ids;
    std::vector<T> distances;
};

inline constexpr std::int64_t kAllNeighbors = std::numeric_limits<std::int64_t>::max();

/// Limits a search to the points at most `radius` away, and of these to the `max_neighbors` nearest.
struct RadiusLimit {
    double radius = 0;
    std::int64_t max_neighbors = kAllNeighbors;
};

/// How queries are divided among threads: `run(count, work)` calls work(0), ..., work(count - 1), in any order or in
/// parallel, and returns when all calls have ended. `most` is an upper bound of `count`. The result does not depend on
/// it.
struct SearchPieces {
    std::int64_t most = 1;
    std::function<void(std::int64_t count, const std::function<void(std::int64_t)>& work)> run{};
};

/// Exact neighbour search among points in 1 to 3 dimensions, on the CPU and without LibTorch.
///
/// Squared distances are (dx dx + dy dy) + dz dz in the type of the coordinates, without fused operations, and are
/// compared with radius * radius in that type: a plain loop gives the same ids, on every processor. Points are stored
/// in a k-d tree with leaves of eight; queries are sorted by a tree of their own and searched in groups of 32 that
/// share the leaves within their reach, so that neither points nor queries need any order. The distance of the k-th
/// nearest point is estimated from the size of the leaves nearby and from the groups before; queries for which the
/// estimate was too small are searched again within an upper bound. Ties and coincident points cost nothing extra.
///
/// In a periodic box the distance along an axis is the shorter of both ways around; an axis with period 0 is open (not
/// periodic).
///
/// Const functions may be called by several threads at once.
template <class T>
class PointSearch {
public:
    /// @param points  (n, dimensions), row by row; copied
    /// @param period  empty, or one length for each axis
    /// @throws InvalidInput for dimensions outside 1 to 3, coordinates that are not finite or larger than 1e18 (1e150
    ///         in double precision), and periods that are negative or not finite
    PointSearch(std::span<const T> points, int dimensions, std::span<const double> period = {},
                SearchPieces pieces = {});
    ~PointSearch();
    PointSearch(PointSearch&&) noexcept;
    PointSearch& operator=(PointSearch&&) noexcept;

    std::int64_t num_points() const;

    /// The k nearest points of each query, or all if there are fewer.
    ///
    /// @param queries         (m, dimensions)
    /// @param excluded        empty, or for each query the id of one point that is not a result (its own); -1 for none
    /// @param bounds_squared  empty, or for each query an upper bound of the squared distance
    /// @throws InvalidInput if k < 1, for wrong coordinates, and if sizes do not fit
    NeighborLists<T> knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded = {},
                         std::span<const T> bounds_squared = {}) const;

    /// The points within each of the radii, found in one pass; one list for each radius.
    /// @throws InvalidInput for radii that are not positive and finite, max_neighbors < 1, wrong coordinates, and if
    /// sizes do not fit
    std::vector<NeighborLists<T>> within(std::span<const T> queries, std::span<const RadiusLimit> limits,
                                         std::span<const std::int32_t> excluded = {}) const;

private:
    struct Base;
    template <int D>
    struct Impl;
    std::unique_ptr<const Base> impl_;
};

/// @throws InvalidInput, with a message that begins with `where`, if the radius is not positive and finite, or
/// max_neighbors is below 1.
void require_limit(const char* where, const RadiusLimit& limit);

/// @throws InvalidInput, with a message that begins with `where`, if a coordinate is not finite or so large that its
/// square is not.
template <class T>
void require_coordinates(const char* where, const char* what, std::span<const T> coordinates, int dimensions);

}  // namespace meshard
