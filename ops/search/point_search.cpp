// SPDX-License-Identifier: Apache-2.0
#include "ops/search/point_search.h"

#include "ops/search/point_tree.h"
#include "ops/search/point_walk.h"
#include "partition/error.h"

#include <cmath>

namespace meshard {
namespace {

using namespace point_tree;

constexpr std::int64_t kGroup = 32;      // number of queries that are searched together
constexpr std::int64_t kMinPiece = 128;  // number of groups for which a thread is worth its cost

template <class T>
constexpr T kLargestCoordinate = sizeof(T) == 4 ? T(1e18) : T(1e150);

/// Maps a coordinate on a periodic axis to [0, period).
template <class T>
T wrapped(T x, T period)
{
    if (!std::isfinite(period)) return x;
    const T inside = x - period * std::floor(x / period);
    return inside >= period || inside < 0 ? T{0} : inside;
}

template <class T>
T squared(double radius)
{
    return static_cast<T>(radius) * static_cast<T>(radius);
}

}  // namespace

void require_limit(const char* where, const RadiusLimit& limit)
{
    if (!(limit.radius > 0) || !std::isfinite(limit.radius) || limit.radius > 1e18) {
        throw InvalidInput("{}: the radius is {:g}; it must be positive and finite (at most 1e18).", where,
                           limit.radius);
    }
    if (limit.max_neighbors < 1) {
        throw InvalidInput("{}: max_neighbors is {}; it must be 1 or more.", where, limit.max_neighbors);
    }
}

template <class T>
void require_coordinates(const char* where, const char* what, std::span<const T> coordinates, int dimensions)
{
    if (dimensions < 1 || dimensions > 3) {
        throw InvalidInput("{}: {} have {} dimensions, expected 1 to 3.", where, what, dimensions);
    }
    if (coordinates.size() % dimensions != 0) {
        throw InvalidInput("{}: {} are {} numbers, no multiple of the {} dimensions.", where, what, coordinates.size(),
                           dimensions);
    }
    if (coordinates.size() / dimensions > static_cast<std::size_t>(kLastId)) {
        throw InvalidInput("{}: more than 2^31 - 1 {} on one rank. Use more ranks.", where, what);
    }
    const auto bad = std::ranges::find_if(coordinates, [](T x) { return !(std::abs(x) <= kLargestCoordinate<T>); });
    if (bad == coordinates.end()) return;
    const auto row = (bad - coordinates.begin()) / dimensions;
    throw InvalidInput("{}: row {} of the {} has the coordinate {:g}; all must be finite and at most {:g} "
                       "in size. Remove or mend that row.",
                       where, row, what, *bad, kLargestCoordinate<T>);
}
template void require_coordinates(const char*, const char*, std::span<const float>, int);
template void require_coordinates(const char*, const char*, std::span<const double>, int);

template <class T>
struct PointSearch<T>::Base {
    virtual ~Base() = default;
    virtual std::int64_t num_points() const = 0;
    virtual int dimensions() const = 0;
    virtual NeighborLists<T> knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded,
                                 std::span<const T> bounds_squared) const = 0;
    virtual std::vector<NeighborLists<T>> within(std::span<const T> queries, std::span<const RadiusLimit> limits,
                                                 std::span<const std::int32_t> excluded) const = 0;
};

template <class T>
template <int D>
struct PointSearch<T>::Impl : PointSearch<T>::Base {
    std::vector<Item<T, D>> ordered;
    std::vector<T> original;  // to detect that the queries are the points themselves
    Tree<T, D> tree;
    Period<T, D> period;
    SearchPieces pieces;

    Impl(std::span<const T> points, std::span<const double> lengths, SearchPieces pieces)
        : original(points.begin(), points.end()), pieces(std::move(pieces))
    {
        period.length.fill(std::numeric_limits<T>::infinity());
        for (std::size_t d = 0; d < lengths.size(); ++d) {
            if (lengths[d] > 0) period.length[d] = static_cast<T>(lengths[d]), period.any = true;
        }
        ordered = items_of(points);
        tree.build(ordered);
    }

    std::vector<Item<T, D>> items_of(std::span<const T> rows) const
    {
        std::vector<Item<T, D>> items(rows.size() / D);
        for (std::size_t i = 0; i < items.size(); ++i) {
            for (int d = 0; d < D; ++d) items[i].x[d] = wrapped(rows[i * D + d], period.length[d]);
            items[i].id = static_cast<std::int32_t>(i);
        }
        order_items<T, D>(items);
        return items;
    }

    std::int64_t num_points() const override { return std::ssize(ordered); }
    int dimensions() const override { return D; }

    std::vector<NeighborLists<T>> answer(std::span<const T> rows, SearchRequest<T, D> request) const
    {
        std::vector<Item<T, D>> own_order;
        const bool are_points = std::equal(rows.begin(), rows.end(), original.begin(), original.end());
        if (!are_points) own_order = items_of(rows);
        request.queries = are_points ? std::span<const Item<T, D>>(ordered) : own_order;
        const auto num_queries = std::ssize(request.queries);
        FoundNeighbors<T> found(num_queries, std::ssize(request.max_neighbors), request.stride);
        const auto num_groups = (num_queries + kGroup - 1) / kGroup;
        const auto num_pieces =
            std::clamp<std::int64_t>(num_groups / kMinPiece, 1, std::max<std::int64_t>(1, pieces.most));
        std::vector<Records<T>> records(num_pieces);
        const auto work = [&](std::int64_t piece) {
            Walk<T, D> walk(tree, num_points(), period, request, found, records[piece]);
            for (auto g = piece * num_groups / num_pieces; g < (piece + 1) * num_groups / num_pieces; ++g) {
                walk.group(g * kGroup, std::min(num_queries, (g + 1) * kGroup));
            }
        };
        if (num_pieces == 1)
            work(0);
        else
            pieces.run(num_pieces, work);
        return std::move(found).lists();
    }

    NeighborLists<T> knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded,
                         std::span<const T> bounds_squared) const override
    {
        SearchRequest<T, D> request;
        request.excluded = excluded;
        request.bounds_squared = bounds_squared;
        request.wanted = k + (excluded.empty() ? 0 : 1);
        request.max_neighbors = {k};
        if (bounds_squared.empty()) request.stride = std::min(k, num_points());
        return std::move(answer(queries, std::move(request)).front());
    }

    std::vector<NeighborLists<T>> within(std::span<const T> queries, std::span<const RadiusLimit> limits,
                                         std::span<const std::int32_t> excluded) const override
    {
        // Lists with a limit and without are searched separately: a search for few points within a large radius must
        // not visit all points there.
        std::vector<NeighborLists<T>> lists(limits.size());
        for (const bool limited : {true, false}) {
            SearchRequest<T, D> request;
            request.excluded = excluded;
            request.bound_squared = 0;
            request.wanted = 0;
            std::vector<std::size_t> positions;
            for (std::size_t i = 0; i < limits.size(); ++i) {
                const auto count = limits[i].max_neighbors;
                if ((count < num_points()) != limited) continue;
                positions.push_back(i);
                request.radii_squared.push_back(squared<T>(limits[i].radius));
                request.max_neighbors.push_back(count);
                request.bound_squared = std::max(request.bound_squared, request.radii_squared.back());
                request.wanted = std::max(request.wanted, limited ? count + (excluded.empty() ? 0 : 1) : kAllNeighbors);
            }
            if (positions.empty()) continue;
            auto found = answer(queries, std::move(request));
            for (std::size_t i = 0; i < positions.size(); ++i) lists[positions[i]] = std::move(found[i]);
        }
        return lists;
    }
};

template <class T>
PointSearch<T>::PointSearch(std::span<const T> points, int dimensions, std::span<const double> period,
                            SearchPieces pieces)
{
    require_coordinates("PointSearch", "points", points, dimensions);
    if (!period.empty() && static_cast<int>(period.size()) != dimensions) {
        throw InvalidInput("PointSearch: {} periods for points of {} dimensions. Pass one an axis, 0 for an open one.",
                           period.size(), dimensions);
    }
    for (const auto length : period) {
        if (!(length >= 0) || length > kLargestCoordinate<T>) {
            throw InvalidInput("PointSearch: the period {:g}; it must be positive, or 0 for an open axis.", length);
        }
    }
    if (dimensions == 1) impl_ = std::make_unique<const Impl<1>>(points, period, std::move(pieces));
    if (dimensions == 2) impl_ = std::make_unique<const Impl<2>>(points, period, std::move(pieces));
    if (dimensions == 3) impl_ = std::make_unique<const Impl<3>>(points, period, std::move(pieces));
}

template <class T>
PointSearch<T>::~PointSearch() = default;
template <class T>
PointSearch<T>::PointSearch(PointSearch&&) noexcept = default;
template <class T>
PointSearch<T>& PointSearch<T>::operator=(PointSearch&&) noexcept = default;

template <class T>
std::int64_t PointSearch<T>::num_points() const
{
    return impl_->num_points();
}

namespace {

template <class Rows>
void require_one_a_query(const char* where, const char* what, const Rows& rows, std::size_t num_queries)
{
    if (rows.empty() || rows.size() == num_queries) return;
    throw InvalidInput("{}: {} {} for {} queries. Pass one a query or none.", where, rows.size(), what, num_queries);
}

}  // namespace

template <class T>
NeighborLists<T> PointSearch<T>::knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded,
                                     std::span<const T> bounds_squared) const
{
    if (k < 1) throw InvalidInput("knn: k is {}; it must be 1 or more.", k);
    require_coordinates("knn", "queries", queries, impl_->dimensions());
    require_one_a_query("knn", "excluded ids", excluded, queries.size() / impl_->dimensions());
    require_one_a_query("knn", "bounds", bounds_squared, queries.size() / impl_->dimensions());
    return impl_->knn(queries, k, excluded, bounds_squared);
}

template <class T>
std::vector<NeighborLists<T>> PointSearch<T>::within(std::span<const T> queries, std::span<const RadiusLimit> limits,
                                                     std::span<const std::int32_t> excluded) const
{
    for (const auto& limit : limits) require_limit("radius_search", limit);
    require_coordinates("radius_search", "queries", queries, impl_->dimensions());
    require_one_a_query("radius_search", "excluded ids", excluded, queries.size() / impl_->dimensions());
    return impl_->within(queries, limits, excluded);
}

template class PointSearch<float>;
template class PointSearch<double>;

}  // namespace meshard
