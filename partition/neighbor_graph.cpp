// SPDX-License-Identifier: Apache-2.0
#include "partition/neighbor_graph.h"

#include "partition/error.h"

#include <nanoflann.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

namespace {

struct PointCloud {
    std::vector<double> coordinates;

    std::size_t kdtree_get_point_count() const { return coordinates.size() / 3; }
    double kdtree_get_pt(std::size_t point, std::size_t axis) const { return coordinates[3 * point + axis]; }
    const double* point(std::size_t i) const { return coordinates.data() + 3 * i; }

    template <class Box>
    bool kdtree_get_bbox(Box&) const
    {
        return false;
    }
};

using Tree =
    nanoflann::KDTreeSingleIndexAdaptor<nanoflann::L2_Simple_Adaptor<double, PointCloud, double, std::uint32_t>,
                                        PointCloud, 3, std::uint32_t>;

// The k nearest so far, by (squared distance, index). nanoflann's own sets keep whichever of equal distances came
// first.
class NearestOthers {
public:
    explicit NearestOthers(std::size_t k) : nearest_(k) {}

    void start(std::uint32_t self)
    {
        self_ = self;
        count_ = 0;
    }

    bool addPoint(double distance_squared, std::uint32_t index)
    {
        if (index == self_) return true;
        const std::pair candidate(distance_squared, index);
        if (full() && candidate >= nearest_.back()) return true;
        auto at = full() ? count_ - 1 : count_++;
        for (; at > 0 && candidate < nearest_[at - 1]; --at) nearest_[at] = nearest_[at - 1];
        nearest_[at] = candidate;
        return true;
    }

    // A little above the k-th distance: nanoflann drops points at this distance itself, and ties must be seen.
    double worstDist() const
    {
        if (!full()) return std::numeric_limits<double>::max();
        return nearest_.back().first * (1 + 1e-12) + std::numeric_limits<double>::denorm_min();
    }

    bool full() const { return count_ == nearest_.size(); }

    std::span<const std::pair<double, std::uint32_t>> found() const { return {nearest_.data(), count_}; }

private:
    std::vector<std::pair<double, std::uint32_t>> nearest_;
    std::size_t count_ = 0;
    std::uint32_t self_ = 0;
};

PointCloud cloud_of(const DataArray& points)
{
    if (points.num_components() != 3)
        throw InvalidInput("nearest_neighbors: points have " + std::to_string(points.num_components()) +
                           " components, expected 3.");
    if (points.num_rows() > std::numeric_limits<std::int32_t>::max())
        throw InvalidInput("nearest_neighbors: " + std::to_string(points.num_rows()) +
                           " points are more than 32-bit rows can number.");
    PointCloud cloud{points.to_doubles()};
    const auto bad = std::ranges::find_if_not(cloud.coordinates, [](double x) { return std::isfinite(x); });
    if (bad != cloud.coordinates.end())
        throw InvalidInput("nearest_neighbors: point " + std::to_string((bad - cloud.coordinates.begin()) / 3) +
                           " has the coordinate " + std::to_string(*bad) + "; all must be finite.");
    return cloud;
}

} // namespace

Csr nearest_neighbors(const DataArray& points, std::int32_t k)
{
    if (k < 1) throw InvalidInput("nearest_neighbors: k is " + std::to_string(k) + ", expected 1 or more.");
    const auto cloud = cloud_of(points);
    const auto num_points = points.num_rows();
    const auto taken = std::clamp<std::int64_t>(num_points - 1, 0, k);

    Csr neighbors;
    neighbors.offsets.resize(num_points + 1);
    for (std::int64_t i = 0; i <= num_points; ++i) neighbors.offsets[i] = i * taken;
    if (taken == 0) return neighbors;
    neighbors.indices.resize(num_points * taken);

    const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(12));
    NearestOthers nearest(taken);
    for (const auto i : tree.vAcc) { // in the tree's order: queries in a row visit the same leaves
        nearest.start(i);
        tree.findNeighbors(nearest, cloud.point(i), nanoflann::SearchParams());
        auto to = neighbors.indices.begin() + neighbors.offsets[i];
        for (const auto& [distance_squared, index] : nearest.found()) *to++ = static_cast<std::int32_t>(index);
    }
    return neighbors;
}

Csr nearest_neighbor_graph(const DataArray& points, std::int32_t k)
{
    const auto directed = nearest_neighbors(points, k);
    const auto num_points = directed.num_rows();

    std::vector<std::int64_t> first(num_points + 1, 0); // of each row when both directions are written
    for (std::int64_t i = 0; i < num_points; ++i) {
        first[i + 1] += directed.offsets[i + 1] - directed.offsets[i];
        for (const auto j : directed.row(i)) ++first[j + 1];
    }
    for (std::int64_t i = 0; i < num_points; ++i) first[i + 1] += first[i];
    std::vector<std::int32_t> both(first.back());
    std::vector<std::int64_t> next(first.begin(), first.end() - 1);
    for (std::int64_t i = 0; i < num_points; ++i)
        for (const auto j : directed.row(i)) {
            both[next[i]++] = j;
            both[next[j]++] = static_cast<std::int32_t>(i);
        }

    Csr graph;
    graph.offsets.reserve(num_points + 1);
    graph.indices.reserve(both.size());
    for (std::int64_t i = 0; i < num_points; ++i) {
        const auto begin = both.begin() + first[i];
        const auto end = both.begin() + first[i + 1];
        std::sort(begin, end);
        graph.indices.insert(graph.indices.end(), begin, std::unique(begin, end));
        graph.offsets.push_back(graph.num_entries());
    }
    return graph;
}

} // namespace meshard
