// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/neighbor_graph.h"

#include "partition/error.h"

#include <nanoflann.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
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

using Found = std::pair<double, std::int32_t>;  // squared distance, index

// nanoflann excludes points at exactly its limit; here they are included.
double limit_above(double distance_squared)
{
    return distance_squared * (1 + 1e-12) + std::numeric_limits<double>::denorm_min();
}

// The k nearest so far, by (squared distance, index). nanoflann's own sets keep any of several points at equal
// distances.
class Nearest {
public:
    explicit Nearest(std::size_t k, double most_squared = std::numeric_limits<double>::max())
        : nearest_(k), most_squared_(most_squared)
    {
    }

    void clear() { count_ = 0; }

    bool addPoint(double distance_squared, std::uint32_t index)
    {
        const Found candidate(distance_squared, static_cast<std::int32_t>(index));
        if (distance_squared > most_squared_) return true;
        if (full() && candidate >= nearest_.back()) return true;
        auto at = full() ? count_ - 1 : count_++;
        for (; at > 0 && candidate < nearest_[at - 1]; --at) nearest_[at] = nearest_[at - 1];
        nearest_[at] = candidate;
        return true;
    }

    // Slightly more, so that ties are visited.
    double worstDist() const
    {
        if (!full() && most_squared_ == std::numeric_limits<double>::max()) return most_squared_;
        return limit_above(full() ? nearest_.back().first : most_squared_);
    }

    bool full() const { return count_ == nearest_.size(); }

    std::span<const Found> found() const { return {nearest_.data(), count_}; }

private:
    std::vector<Found> nearest_;
    double most_squared_;
    std::size_t count_ = 0;
};

// Collects all points within a distance.
class Within {
public:
    explicit Within(double distance_squared) : distance_squared_(distance_squared) {}

    void clear() { found_.clear(); }

    bool addPoint(double distance_squared, std::uint32_t index)
    {
        if (distance_squared <= distance_squared_) found_.push_back(static_cast<std::int32_t>(index));
        return true;
    }

    double worstDist() const { return limit_above(distance_squared_); }
    bool full() const { return true; }
    std::vector<std::int32_t>& found() { return found_; }

private:
    double distance_squared_;
    std::vector<std::int32_t> found_;
};

// Finds whether any point is within a distance.
class AnyWithin {
public:
    explicit AnyWithin(double distance_squared) : distance_squared_(distance_squared) {}

    bool addPoint(double distance_squared, std::uint32_t)
    {
        found_ = distance_squared <= distance_squared_;
        return !found_;
    }

    double worstDist() const { return limit_above(distance_squared_); }
    bool full() const { return true; }
    bool found() const { return found_; }

private:
    double distance_squared_;
    bool found_ = false;
};

PointCloud cloud_of(const DataArray& points)
{
    if (points.num_components() != 3)
        throw InvalidInput("nearest_neighbors: points have {} components, expected 3.", points.num_components());
    if (points.num_rows() > std::numeric_limits<std::int32_t>::max())
        throw InvalidInput("nearest_neighbors: {} points are more than 32-bit rows can number.", points.num_rows());
    PointCloud cloud{points.to_doubles()};
    constexpr double largest = 1e150;  // its square is still finite
    const auto bad = std::ranges::find_if_not(cloud.coordinates, [](double x) { return std::abs(x) <= largest; });
    if (bad != cloud.coordinates.end())
        throw InvalidInput("nearest_neighbors: point {} has the coordinate {}; all must be finite and at most 1e150.",
                           (bad - cloud.coordinates.begin()) / 3, *bad);
    return cloud;
}

// Points with equal coordinates form one site, numbered by their first points. The cost of a search among sites does
// not depend on the number of points at each; among the points themselves, each of n coinciding ones would cost n
// visits.
struct Sites {
    PointCloud cloud;
    Csr points;  // points of each site, ascending
};

Sites sites_of(const PointCloud& cloud)
{
    const auto num_points = cloud.kdtree_get_point_count();
    std::vector<std::int32_t> site_in_slot(std::bit_ceil(2 * num_points + 1), -1);
    std::vector<std::int32_t> site_of_point(num_points);
    Sites sites;
    for (std::size_t i = 0; i < num_points; ++i) {
        const auto* x = cloud.point(i);
        std::uint64_t slot = 0;
        for (int axis = 0; axis < 3; ++axis)  // + 0.0 turns -0 into 0
            slot = (std::rotl(slot, 21) ^ std::bit_cast<std::uint64_t>(x[axis] + 0.0)) * 0x9e3779b97f4a7c15u;
        slot ^= slot >> 32;
        for (;; ++slot) {
            auto& site = site_in_slot[slot & (site_in_slot.size() - 1)];
            if (site < 0) {
                site = static_cast<std::int32_t>(sites.cloud.kdtree_get_point_count());
                sites.cloud.coordinates.insert(sites.cloud.coordinates.end(), x, x + 3);
            }
            if (!std::equal(x, x + 3, sites.cloud.point(site))) continue;
            site_of_point[i] = site;
            break;
        }
    }
    sites.points =
        rows_by_label(site_of_point, std::max(1, static_cast<std::int32_t>(sites.cloud.kdtree_get_point_count())));
    return sites;
}

}  // namespace

Csr nearest_neighbors(const DataArray& points, std::int32_t k)
{
    if (k < 1) throw InvalidInput("nearest_neighbors: k is {}, expected 1 or more.", k);
    const auto sites = sites_of(cloud_of(points));
    const auto num_points = points.num_rows();
    const auto taken = std::clamp<std::int64_t>(num_points - 1, 0, k);

    Csr neighbors;
    neighbors.offsets.resize(num_points + 1);
    for (std::int64_t i = 0; i <= num_points; ++i) neighbors.offsets[i] = i * taken;
    if (taken == 0) return neighbors;
    neighbors.indices.resize(num_points * taken);

    // One more, since the first one found is the point itself.
    const auto wanted = static_cast<std::size_t>(taken) + 1;
    const Tree tree(3, sites.cloud, nanoflann::KDTreeSingleIndexAdaptorParams(12));
    Nearest nearest(wanted);
    std::vector<Found> found;
    for (const auto site : tree.vAcc) {  // in the tree's order, so that consecutive searches visit the same leaves
        nearest.clear();
        tree.findNeighbors(nearest, sites.cloud.point(site), nanoflann::SearchParams());
        found.clear();
        for (const auto& [distance_squared, other] : nearest.found())
            for (const auto point : sites.points.row(other).first(std::min(wanted, sites.points.row(other).size())))
                found.emplace_back(distance_squared, point);
        if (found.size() > nearest.found().size()) std::ranges::sort(found);
        for (const auto i : sites.points.row(site)) {
            auto to = neighbors.indices.begin() + neighbors.offsets[i];
            const auto end = neighbors.indices.begin() + neighbors.offsets[i + 1];
            for (auto from = found.begin(); to != end; ++from)
                if (from->second != i) *to++ = from->second;
        }
    }
    return neighbors;
}

Csr radius_graph(const DataArray& points, double radius)
{
    if (!(radius > 0)) throw InvalidInput("radius_graph: the radius is {}, expected above 0.", radius);
    const auto cloud = cloud_of(points);
    const auto num_points = points.num_rows();
    Csr graph;
    graph.offsets.reserve(num_points + 1);
    if (num_points == 0) return graph;
    const Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(12));
    const auto radius_squared = radius * radius;
    Within within(radius_squared);
    constexpr std::int64_t most = std::int64_t{1} << 33;
    for (std::int64_t i = 0; i < num_points; ++i) {
        within.clear();
        tree.findNeighbors(within, cloud.point(i), nanoflann::SearchParams());
        auto& found = within.found();
        std::erase(found, static_cast<std::int32_t>(i));
        std::ranges::sort(found);
        graph.push_row(found);
        if (graph.num_entries() > most)
            throw InvalidInput(
                "radius_graph: within the radius {} there are more than {} neighbours. Take a smaller one.", radius,
                most);
    }
    return graph;
}

Csr nearest_neighbor_graph(const DataArray& points, std::int32_t k)
{
    return symmetric_graph(nearest_neighbors(points, k));
}

Csr symmetric_graph(const Csr& directed)
{
    const auto num_points = directed.num_rows();

    std::vector<std::int64_t> first(num_points + 1, 0);  // start of each row when both directions are written
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

struct PointTree::Search {
    explicit Search(const DataArray& of)
        : sites(sites_of(cloud_of(of))), tree(3, sites.cloud, nanoflann::KDTreeSingleIndexAdaptorParams(12))
    {
    }

    Sites sites;
    Tree tree;
};

PointTree::PointTree(const DataArray& points) : search_(std::make_unique<Search>(points)) {}

PointTree::~PointTree() = default;

std::vector<PointTree::Found> PointTree::nearest(const std::array<double, 3>& position, std::int32_t k,
                                                 double most_squared) const
{
    std::vector<Found> result;
    const auto num_sites = search_->sites.points.num_rows();
    if (k < 1 || num_sites == 0) return result;
    Nearest nearest(static_cast<std::size_t>(std::min<std::int64_t>(k, num_sites)), most_squared);
    search_->tree.findNeighbors(nearest, position.data(), nanoflann::SearchParams());
    const auto wanted = static_cast<std::size_t>(k);
    for (const auto& [squared_distance, site] : nearest.found()) {
        const auto points = search_->sites.points.row(site);
        for (const auto point : points.first(std::min(wanted, points.size())))
            result.push_back({squared_distance, point});
    }
    std::ranges::sort(result);
    if (result.size() > wanted) result.resize(wanted);
    return result;
}

bool PointTree::has_any_within(const std::array<double, 3>& position, double radius) const
{
    AnyWithin any(radius * radius);
    if (search_->sites.points.num_rows() > 0)
        search_->tree.findNeighbors(any, position.data(), nanoflann::SearchParams());
    return any.found();
}

}  // namespace meshard
