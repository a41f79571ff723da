// SPDX-License-Identifier: Apache-2.0
#include "ops/point_search.h"

#include "ops/point_tree.h"
#include "partition/error.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

namespace meshard {
namespace {

using namespace point_tree;

constexpr std::int64_t kGroup = 2 * kWidth;       // queries that share a walk
constexpr std::int64_t kMaxGroupLeaves = 192;     // a group that reaches more is split
constexpr std::int32_t kLastId = std::numeric_limits<std::int32_t>::max();

template <class T>
constexpr T kLargestCoordinate = sizeof(T) == 4 ? T(1e18) : T(1e150);

template <class T>
constexpr T kNoBound = std::numeric_limits<T>::max();   // empty lanes are infinitely far, beyond it

/// Answers as they come, in the order in which queries are walked, or at once in their places if each query is likely to have `stride` of them.
template <class T>
struct Found {
    std::vector<std::int32_t> ids;
    std::vector<T> distances;
    std::vector<std::int64_t> first, count;   // of each query
    std::int64_t stride;

    Found(std::int64_t num_queries, std::int64_t stride)
        : ids(num_queries * stride), distances(num_queries * stride), first(num_queries), count(num_queries), stride(stride)
    {
    }

    void put(std::int64_t query, const Key<T>* keys, std::int64_t num_keys)
    {
        const auto begin = stride > 0 ? query * stride : static_cast<std::int64_t>(ids.size());
        first[query] = begin;
        count[query] = num_keys;
        if (stride == 0) {
            ids.resize(begin + num_keys);
            distances.resize(begin + num_keys);
        }
        auto* const to_ids = ids.data() + begin;
        auto* const to_distances = distances.data() + begin;
        for (std::int64_t i = 0; i < num_keys; ++i) to_ids[i] = id_of<T>(keys[i]);
        for (std::int64_t i = 0; i < num_keys; ++i) to_distances[i] = std::sqrt(distance_squared_of<T>(keys[i]));
    }

    NeighborLists<T> lists() &&
    {
        NeighborLists<T> result;
        result.offsets.resize(first.size() + 1);
        for (std::size_t i = 0; i < first.size(); ++i) result.offsets[i + 1] = result.offsets[i] + count[i];
        if (stride > 0 && result.offsets.back() == static_cast<std::int64_t>(ids.size())) {
            result.ids = std::move(ids);
            result.distances = std::move(distances);
            return result;
        }
        result.ids.resize(result.offsets.back());
        result.distances.resize(result.offsets.back());
        for (std::size_t i = 0; i < first.size(); ++i) {
            std::copy_n(ids.begin() + first[i], count[i], result.ids.begin() + result.offsets[i]);
            std::copy_n(distances.begin() + first[i], count[i], result.distances.begin() + result.offsets[i]);
        }
        return result;
    }
};

/// What one search asks for.
template <class T, int D>
struct Question {
    std::span<const Item<T, D>> queries;           // in walking order, each with its row as id
    std::span<const std::int32_t> excluded;
    std::span<const T> bounds_squared;             // by row
    T bound_squared = kNoBound<T>;
    std::int64_t wanted = kAllNeighbors;           // the nearest so many, the excluded one among them
    std::vector<T> radii_squared;                  // lists to write: all, if empty
    std::vector<std::int64_t> max_neighbors;
    std::int64_t stride = 0;                       // neighbours that each query has, as far as one can tell
};

/// One walk: the tree, what is asked, and memory that lasts from group to group.
template <class T, int D>
class Walk {
public:
    Walk(const Tree<T, D>& tree, std::int64_t num_points, const Period<T, D>& period, const Question<T, D>& question, std::vector<Found<T>>& found)
        : tree_(tree), period_(period), question_(question), found_(found), wanted_(std::min(question.wanted, num_points))
    {
        limited_ = question.wanted < num_points;
        // Room for what is wanted twice, so that sorting out is rare, and for a leaf more than is looked at.
        if (limited_) capacity_ = std::max<std::int64_t>(2 * wanted_, wanted_ + 32);
    }

    void group(std::int64_t begin, std::int64_t end)
    {
        const auto num_queries = end - begin;
        auto box = Box<T, D>::empty();
        for (auto i = begin; i < end; ++i) box.add(question_.queries[i].x);

        if (static_cast<std::int64_t>(candidates_.size()) < kGroup) candidates_.resize(kGroup);
        Key<T> farthest = 0;
        std::int64_t seed_begin = 0, seed_end = 0;
        if (limited_) {
            const auto num_leaves = static_cast<std::int64_t>(tree_.leaves.size());
            const auto num_seeds = std::min(num_leaves, wanted_ / kWidth + 1);
            seed_begin = std::clamp<std::int64_t>(nearest_leaf(box) - num_seeds / 2, 0, num_leaves - num_seeds);
            seed_end = seed_begin + num_seeds;
        }
        for (auto i = begin; i < end; ++i) {
            auto& c = candidates_[i - begin];
            const auto& query = question_.queries[i];
            c.count = 0;
            c.bound = make_key<T>(question_.bounds_squared.empty() ? question_.bound_squared
                                                                   : std::min(question_.bounds_squared[query.id], question_.bound_squared), kLastId);
            for (auto leaf = seed_begin; leaf < seed_end; ++leaf) look_at(leaf, query.x, c);
            if (limited_) keep_nearest(c);
            farthest = std::max(farthest, c.bound);
        }

        collect(box, farthest, seed_begin, seed_end);
        if (num_queries > 1 && static_cast<std::int64_t>(leaves_.size()) > kMaxGroupLeaves) {
            group(begin, begin + num_queries / 2);
            group(begin + num_queries / 2, end);
            return;
        }
        for (auto i = begin; i < end; ++i) finish(question_.queries[i], candidates_[i - begin]);
    }

private:
    struct Candidates {
        std::vector<Key<T>> keys;
        std::int64_t count = 0;
        Key<T> bound = 0;   // no key above it is wanted
    };

    std::int64_t nearest_leaf(const Box<T, D>& box) const
    {
        Box<T, D> center;
        for (int d = 0; d < D; ++d) center.low[d] = center.high[d] = box.low[d] / 2 + box.high[d] / 2;
        std::int64_t index = 0;
        for (auto level = tree_.levels.rbegin(); level != tree_.levels.rend(); ++level) {
            const auto& node = (*level)[index];
            const auto distances = box_distances<T, D>(center, node.low, node.high, period_);
            Key<T> best = make_key<T>(distances[0], node.least_id[0]);
            int best_lane = 0;
            for (int lane = 1; lane < kWidth; ++lane) {
                const auto key = make_key<T>(distances[lane], node.least_id[lane]);
                if (key < best) best = key, best_lane = lane;
            }
            index = index * kWidth + best_lane;
        }
        return index;
    }

    /// Appends the points of a leaf that are not beyond the bound.
    void look_at(std::int64_t leaf_index, const std::array<T, D>& x, Candidates& c)
    {
        if (limited_) {
            if (c.count + kWidth > capacity_) keep_nearest(c);
            if (c.keys.empty()) c.keys.resize(capacity_ + kWidth);
        } else if (c.count + kWidth > static_cast<std::int64_t>(c.keys.size())) {
            c.keys.resize(std::max<std::size_t>(256, 2 * c.keys.size()));
        }
        const auto& leaf = tree_.leaves[leaf_index];
        const Wide<T> distances = point_distances<T, D>(x, leaf.x, period_);
        const T bound = distance_squared_of<T>(c.bound);
        auto* to = c.keys.data() + c.count;
        T values[kWidth];
        std::memcpy(values, &distances, sizeof values);
        for (auto lanes = distances.lanes_up_to(bound); lanes != 0; lanes &= lanes - 1) {
            const auto lane = std::countr_zero(lanes);
            *to++ = make_key<T>(values[lane], leaf.ids[lane]);
        }
        c.count = to - c.keys.data();
    }

    void keep_nearest(Candidates& c)
    {
        if (c.count < wanted_) return;
        const auto last = c.keys.begin() + (wanted_ - 1);
        std::nth_element(c.keys.begin(), last, c.keys.begin() + c.count);
        c.count = wanted_;
        c.bound = std::min(c.bound, *last);
    }

    /// Leaves outside the seeds that may hold a point with a key up to `farthest` for some query in the box, with their boxes side by side.
    void collect(const Box<T, D>& box, Key<T> farthest, std::int64_t seed_begin, std::int64_t seed_end)
    {
        leaves_.clear();
        boxes_.clear();
        if (tree_.levels.empty()) return;
        const T bound = distance_squared_of<T>(farthest);
        stack_.assign(1, {static_cast<int>(tree_.levels.size()) - 1, 0});
        while (!stack_.empty()) {
            const auto [level, index] = stack_.back();
            stack_.pop_back();
            const auto& node = tree_.levels[level][index];
            const auto distances = box_distances<T, D>(box, node.low, node.high, period_);
            for (auto lanes = distances.lanes_up_to(bound); lanes != 0; lanes &= lanes - 1) {
                const auto lane = std::countr_zero(lanes);
                if (make_key<T>(distances[lane], node.least_id[lane]) > farthest) continue;
                const auto child = index * kWidth + lane;
                if (level > 0) {
                    stack_.push_back({level - 1, child});
                } else if (child < seed_begin || child >= seed_end) {
                    const auto place = leaves_.size() % kWidth;
                    if (place == 0) boxes_.emplace_back();
                    auto& wide = boxes_.back();
                    for (int d = 0; d < D; ++d) {
                        wide.low[d].set(static_cast<int>(place), node.low[d][lane]);
                        wide.high[d].set(static_cast<int>(place), node.high[d][lane]);
                    }
                    wide.least_id[place] = node.least_id[lane];
                    leaves_.push_back(static_cast<std::int32_t>(child));
                }
            }
        }
    }

    /// Looks at what the group has collected, first at what is near, and writes the answer.
    void finish(const Item<T, D>& query, Candidates& c)
    {
        Box<T, D> here{query.x, query.x};
        near_.resize(leaves_.size() + 1);
        far_.resize(leaves_.size() + 1);
        std::size_t num_near = 0, num_far = 0;
        const T bound = distance_squared_of<T>(c.bound), near = limited_ ? bound / 4 : bound;
        for (std::size_t b = 0; b < boxes_.size(); ++b) {
            const auto distances = box_distances<T, D>(here, boxes_[b].low, boxes_[b].high, period_);
            auto lanes = distances.lanes_up_to(bound);
            if (b + 1 == boxes_.size() && leaves_.size() % kWidth != 0) lanes &= (1u << leaves_.size() % kWidth) - 1;
            if (lanes == 0) continue;
            T values[kWidth];
            std::memcpy(values, &distances, sizeof values);
            for (; lanes != 0; lanes &= lanes - 1) {
                const auto lane = std::countr_zero(lanes);
                const Key<T> entry = make_key<T>(values[lane], static_cast<std::int32_t>(b * kWidth + lane));
                if (values[lane] <= near) near_[num_near++] = entry;
                else far_[num_far++] = entry;
            }
        }
        look_through(near_, num_near, query, c);
        if (num_far > 0) {
            if (limited_) keep_nearest(c);
            look_through(far_, num_far, query, c);
        }
        if (limited_) keep_nearest(c);
        std::sort(c.keys.begin(), c.keys.begin() + c.count);
        write(query.id, c);
    }

    void look_through(const std::vector<Key<T>>& entries, std::size_t count, const Item<T, D>& query, Candidates& c)
    {
        for (std::size_t i = 0; i < count; ++i) {
            const auto place = id_of<T>(entries[i]);
            const auto least = boxes_[place / kWidth].least_id[place % kWidth];
            if (make_key<T>(distance_squared_of<T>(entries[i]), least) <= c.bound) look_at(leaves_[place], query.x, c);
        }
    }

    void write(std::int32_t query, Candidates& c)
    {
        if (!question_.excluded.empty()) {
            const auto end = c.keys.begin() + c.count;
            const auto own = std::find_if(c.keys.begin(), end, [&](Key<T> key) { return id_of<T>(key) == question_.excluded[query]; });
            if (own != end) {
                std::move(own + 1, end, own);
                --c.count;
            }
        }
        for (std::size_t list = 0; list < found_.size(); ++list) {
            auto count = c.count;
            if (!question_.radii_squared.empty()) {
                const auto last = make_key<T>(question_.radii_squared[list], kLastId);
                count = std::upper_bound(c.keys.begin(), c.keys.begin() + c.count, last) - c.keys.begin();
            }
            found_[list].put(query, c.keys.data(), std::min(count, question_.max_neighbors[list]));
        }
    }

    const Tree<T, D>& tree_;
    const Period<T, D>& period_;
    const Question<T, D>& question_;
    std::vector<Found<T>>& found_;
    std::int64_t wanted_, capacity_ = 0;
    bool limited_;

    struct WideBox {
        std::array<Wide<T>, D> low, high;
        std::array<std::int32_t, kWidth> least_id;
    };
    std::vector<Candidates> candidates_;
    std::vector<std::int32_t> leaves_;
    std::vector<WideBox> boxes_;
    std::vector<std::pair<int, std::int64_t>> stack_;
    std::vector<Key<T>> near_, far_;
};

/// Where a periodic axis puts a coordinate: in [0, period).
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

std::string number(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%g", value);
    return text;
}

}  // namespace

void require_limit(const char* where, const RadiusLimit& limit)
{
    if (!(limit.radius > 0) || !std::isfinite(limit.radius) || limit.radius > 1e18) {
        throw InvalidInput(std::string(where) + ": the radius is " + number(limit.radius) + "; it must be positive and finite (at most 1e18).");
    }
    if (limit.max_neighbors < 1) {
        throw InvalidInput(std::string(where) + ": max_neighbors is " + std::to_string(limit.max_neighbors) + "; it must be 1 or more.");
    }
}

template <class T>
void require_coordinates(const char* where, const char* what, std::span<const T> coordinates, int dimensions)
{
    if (dimensions < 1 || dimensions > 3) {
        throw InvalidInput(std::string(where) + ": " + what + " have " + std::to_string(dimensions) + " dimensions, expected 1 to 3.");
    }
    if (coordinates.size() % dimensions != 0) {
        throw InvalidInput(std::string(where) + ": " + what + " are " + std::to_string(coordinates.size()) + " numbers, no multiple of the " +
                           std::to_string(dimensions) + " dimensions.");
    }
    if (coordinates.size() / dimensions > static_cast<std::size_t>(kLastId)) {
        throw InvalidInput(std::string(where) + ": more than 2^31 - 1 " + what + " on one rank. Use more ranks.");
    }
    const auto bad = std::find_if(coordinates.begin(), coordinates.end(), [](T x) { return !(std::abs(x) <= kLargestCoordinate<T>); });
    if (bad == coordinates.end()) return;
    const auto row = (bad - coordinates.begin()) / dimensions;
    throw InvalidInput(std::string(where) + ": row " + std::to_string(row) + " of the " + what + " has the coordinate " + number(*bad) +
                       "; all must be finite and at most " + number(kLargestCoordinate<T>) + " in size. Remove or mend that row.");
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
    std::vector<T> original;   // to see whether the queries are the points
    Tree<T, D> tree;
    Period<T, D> period;

    Impl(std::span<const T> points, std::span<const double> lengths) : original(points.begin(), points.end())
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

    std::int64_t num_points() const override { return static_cast<std::int64_t>(ordered.size()); }
    int dimensions() const override { return D; }

    std::vector<NeighborLists<T>> answer(std::span<const T> rows, Question<T, D> question) const
    {
        std::vector<Item<T, D>> own_order;
        const bool are_points = std::equal(rows.begin(), rows.end(), original.begin(), original.end());
        if (!are_points) own_order = items_of(rows);
        question.queries = are_points ? std::span<const Item<T, D>>(ordered) : own_order;
        const auto num_queries = static_cast<std::int64_t>(question.queries.size());
        std::vector<Found<T>> found(question.max_neighbors.size(), Found<T>(num_queries, question.stride));
        Walk<T, D> walk(tree, num_points(), period, question, found);
        for (std::int64_t i = 0; i < num_queries; i += kGroup) walk.group(i, std::min(num_queries, i + kGroup));
        std::vector<NeighborLists<T>> lists;
        for (auto& list : found) lists.push_back(std::move(list).lists());
        return lists;
    }

    NeighborLists<T> knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded,
                         std::span<const T> bounds_squared) const override
    {
        Question<T, D> question;
        question.excluded = excluded;
        question.bounds_squared = bounds_squared;
        question.wanted = k + (excluded.empty() ? 0 : 1);
        question.max_neighbors = {k};
        if (bounds_squared.empty()) question.stride = std::min(k, num_points());
        return std::move(answer(queries, std::move(question)).front());
    }

    std::vector<NeighborLists<T>> within(std::span<const T> queries, std::span<const RadiusLimit> limits,
                                         std::span<const std::int32_t> excluded) const override
    {
        // Lists with and without a limit in a pass each: a large radius of which few are wanted must not look at all.
        std::vector<NeighborLists<T>> lists(limits.size());
        for (const bool limited : {true, false}) {
            Question<T, D> question;
            question.excluded = excluded;
            question.bound_squared = 0;
            question.wanted = 0;
            std::vector<std::size_t> places;
            for (std::size_t i = 0; i < limits.size(); ++i) {
                const auto count = limits[i].max_neighbors;
                if ((count < num_points()) != limited) continue;
                places.push_back(i);
                question.radii_squared.push_back(squared<T>(limits[i].radius));
                question.max_neighbors.push_back(count);
                question.bound_squared = std::max(question.bound_squared, question.radii_squared.back());
                question.wanted = std::max(question.wanted, limited ? count + (excluded.empty() ? 0 : 1) : kAllNeighbors);
            }
            if (places.empty()) continue;
            auto found = answer(queries, std::move(question));
            for (std::size_t i = 0; i < places.size(); ++i) lists[places[i]] = std::move(found[i]);
        }
        return lists;
    }
};

template <class T>
PointSearch<T>::PointSearch(std::span<const T> points, int dimensions, std::span<const double> period)
{
    require_coordinates("PointSearch", "points", points, dimensions);
    if (!period.empty() && static_cast<int>(period.size()) != dimensions) {
        throw InvalidInput("PointSearch: " + std::to_string(period.size()) + " periods for points of " + std::to_string(dimensions) +
                           " dimensions. Pass one an axis, 0 for an open one.");
    }
    for (const auto length : period) {
        if (!(length >= 0) || length > kLargestCoordinate<T>) {
            throw InvalidInput("PointSearch: the period " + number(length) + "; it must be positive, or 0 for an open axis.");
        }
    }
    if (dimensions == 1) impl_ = std::make_unique<const Impl<1>>(points, period);
    if (dimensions == 2) impl_ = std::make_unique<const Impl<2>>(points, period);
    if (dimensions == 3) impl_ = std::make_unique<const Impl<3>>(points, period);
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
    throw InvalidInput(std::string(where) + ": " + std::to_string(rows.size()) + " " + what + " for " + std::to_string(num_queries) +
                       " queries. Pass one a query or none.");
}

}  // namespace

template <class T>
NeighborLists<T> PointSearch<T>::knn(std::span<const T> queries, std::int64_t k, std::span<const std::int32_t> excluded,
                                     std::span<const T> bounds_squared) const
{
    if (k < 1) throw InvalidInput("knn: k is " + std::to_string(k) + "; it must be 1 or more.");
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
