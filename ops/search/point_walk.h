// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/search/found_neighbors.h"
#include "ops/search/point_kernels.h"
#include "ops/search/point_search.h"
#include "ops/search/point_tree.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace meshard::point_tree {

inline constexpr std::int32_t kLastId = std::numeric_limits<std::int32_t>::max();

template <class T>
constexpr T kNoBound = std::numeric_limits<T>::max();  // empty lanes are infinitely far away

/// The queries of one search, and the neighbours to find.
template <class T, int D>
struct SearchRequest {
    std::span<const Item<T, D>> queries;     // in the order of the walk; id: row of the query
    std::span<const std::int32_t> excluded;  // one id for each row; or empty
    std::span<const T> bounds_squared;       // one bound for each row; or empty
    T bound_squared = kNoBound<T>;           // bound for all queries
    std::int64_t wanted = kAllNeighbors;     // number of nearest points to find, including the excluded one
    // One for each list: only points within it are written; empty: all points found.
    std::vector<T> radii_squared;
    std::vector<std::int64_t> max_neighbors;  // one for each list
    std::int64_t stride = 0;                  // as in FoundNeighbors
};

/// One walk over groups of queries: the tree, the request, and buffers that are reused from group to group.
template <class T, int D>
class Walk {
public:
    Walk(const Tree<T, D>& tree, std::int64_t num_points, const Period<T, D>& period,
         const SearchRequest<T, D>& request, FoundNeighbors<T>& found, Records<T>& records)
        : tree_(tree), period_(period), request_(request), found_(found), records_(records),
          wanted_(std::min(request.wanted, num_points)), limited_(request.wanted < num_points),
          gather_(kernels_.gather[D - 1][period.any]), filter_(kernels_.filter[D - 1][period.any])
    {
        estimated_reach_ = std::pow(static_cast<double>(wanted_ + 1) / kEstimatePoints, 2.0 / D);
    }

    /// Finds the neighbours of queries `begin` to `end` - 1, which are close to each other.
    void group(std::int64_t begin, std::int64_t end)
    {
        rows_.resize(end - begin);
        std::iota(rows_.begin(), rows_.end(), begin);
        if (limited_)
            search_by_estimate();
        else
            search_within_bound(rows_);
    }

private:
    // Leaves that a group of queries may reach; a group with more is split, or searched within an upper bound.
    static constexpr std::int64_t kMaxLeaves = 256;
    static constexpr std::int64_t kEstimatePoints = 4 * kWidth;
    static constexpr double kEstimateStep = 0.05;  // relative step by which the estimate changes
    static constexpr double kFailureShare = 0.03;  // share of the queries for which the estimate should be too small

    T limit_of(std::int64_t query) const
    {
        return request_.bounds_squared.empty() ? request_.bound_squared
                                               : std::min(request_.bounds_squared[query], request_.bound_squared);
    }

    Box<T, D> box_of_rows(std::span<const std::int64_t> rows) const
    {
        auto box = Box<T, D>::empty();
        for (const auto row : rows) box.add(request_.queries[row].x);
        return box;
    }

    /// Finds the nearest `wanted_` points within an estimate of their distance, which is adapted from group to group.
    /// Queries for which the estimate was too small are searched again within an upper bound.
    void search_by_estimate()
    {
        const auto box = box_of_rows(rows_);
        const auto leaf = nearest_leaf(box);
        const auto estimate = static_cast<T>(std::min<double>(estimated_reach_ * scale_of(leaf), kNoBound<T>));
        T farthest = 0;
        for (const auto row : rows_)
            farthest = std::max(farthest, std::min(estimate, limit_of(request_.queries[row].id)));
        failed_.clear();
        if (estimate > 0 && collect(box, make_key<T>(farthest, kLastId), kMaxLeaves)) {
            gather(box, farthest);
            for (const auto row : rows_) {
                const auto& query = request_.queries[row];
                const auto limit = limit_of(query.id), bound = std::min(estimate, limit);
                const auto count = filter(query, bound);
                const bool is_short = count < wanted_ && estimate < limit;
                if (is_short)
                    failed_.push_back(row);
                else
                    answer(query, count);
                if (is_short || count >= wanted_)
                    estimated_reach_ *=
                        is_short ? 1 + kEstimateStep * (1 - kFailureShare) : 1 - kEstimateStep * kFailureShare;
            }
        } else {
            failed_ = rows_;
            estimated_reach_ /= 1 + kEstimateStep;
        }
        if (!failed_.empty()) search_within_upper_bound(failed_);
    }

    /// Finds the nearest `wanted_` points within an upper bound of their distance: that of the `wanted_`-th nearest
    /// point of the nearest leaves.
    void search_within_upper_bound(std::span<const std::int64_t> rows)
    {
        const auto box = box_of_rows(rows);
        const auto num_leaves = std::ssize(tree_.leaves);
        const auto num_seed_leaves = std::min(num_leaves, wanted_ / kWidth + 1);
        const auto first =
            std::clamp<std::int64_t>(nearest_leaf(box) - num_seed_leaves / 2, 0, num_leaves - num_seed_leaves);
        bounds_.clear();
        Key<T> farthest = 0;
        for (const auto row : rows) {
            const auto& query = request_.queries[row];
            auto bound = make_key<T>(limit_of(query.id), kLastId);
            keys_.clear();
            for (auto l = first; l < first + num_seed_leaves; ++l) {
                const auto& leaf = tree_.leaves[l];
                const auto squares = point_distances<T, D>(query.x, leaf.x, period_);
                for (auto lanes = squares.lanes_up_to(kNoBound<T>); lanes != 0; lanes &= lanes - 1) {
                    const auto lane = std::countr_zero(lanes);
                    keys_.push_back(make_key<T>(squares[lane], leaf.ids[lane]));
                }
            }
            if (std::ssize(keys_) >= wanted_) {
                std::nth_element(keys_.begin(), keys_.begin() + (wanted_ - 1), keys_.end());
                bound = std::min(bound, keys_[wanted_ - 1]);
            }
            bounds_.push_back(distance_squared_of<T>(bound));
            farthest = std::max(farthest, bound);
        }
        if (!collect(box, farthest, rows.size() == 1 ? std::numeric_limits<std::int64_t>::max() : kMaxLeaves)) {
            const std::vector<std::int64_t> own(rows.begin(), rows.end());
            search_within_upper_bound(std::span(own).first(own.size() / 2));
            search_within_upper_bound(std::span(own).subspan(own.size() / 2));
            return;
        }
        gather(box, distance_squared_of<T>(farthest));
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto& query = request_.queries[rows[i]];
            answer(query, filter(query, bounds_[i]));
        }
    }

    /// Finds all points within the bound of each query.
    void search_within_bound(std::span<const std::int64_t> rows)
    {
        const auto box = box_of_rows(rows);
        T longest = 0;
        for (int d = 0; d < D; ++d) longest = std::max(longest, box.high[d] - box.low[d]);
        const bool may_split = rows.size() > 1 && longest * longest > request_.bound_squared;
        if (!collect(box, make_key<T>(request_.bound_squared, kLastId),
                     may_split ? kMaxLeaves : std::numeric_limits<std::int64_t>::max())) {
            search_within_bound(rows.first(rows.size() / 2));
            search_within_bound(rows.subspan(rows.size() / 2));
            return;
        }
        gather(box, request_.bound_squared);
        for (const auto row : rows) {
            const auto& query = request_.queries[row];
            answer(query, filter(query, limit_of(query.id)));
        }
    }

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

    /// The squared diagonal of the box around four leaves, one of them `leaf`.
    double scale_of(std::int64_t leaf) const
    {
        const auto& node = tree_.levels[0][leaf / kWidth];
        const int first = static_cast<int>(leaf % kWidth) / 4 * 4;
        double sum = 0;
        for (int d = 0; d < D; ++d) {
            T low = node.low[d][first], high = node.high[d][first];
            for (int lane = first + 1; lane < first + 4; ++lane) {
                low = std::min(low, node.low[d][lane]);
                high = std::max(high, node.high[d][lane]);
            }
            sum += static_cast<double>(high - low) * static_cast<double>(high - low);
        }
        return sum;
    }

    /// Collects in `leaves_` the leaves that may hold a point with a key up to `farthest` for some query in the box;
    /// returns false if there are more than `most`.
    bool collect(const Box<T, D>& box, Key<T> farthest, std::int64_t most)
    {
        leaves_.clear();
        if (tree_.levels.empty()) return true;
        const T bound = distance_squared_of<T>(farthest);
        const auto last_id = id_of<T>(farthest);
        stack_.assign(1, {static_cast<int>(tree_.levels.size()) - 1, 0});
        while (!stack_.empty()) {
            const auto [level, index] = stack_.back();
            stack_.pop_back();
            const auto& node = tree_.levels[level][index];
            const auto distances = box_distances<T, D>(box, node.low, node.high, period_);
            for (auto lanes = distances.lanes_up_to(bound); lanes != 0; lanes &= lanes - 1) {
                const auto lane = std::countr_zero(lanes);
                if (last_id != kLastId && make_key<T>(distances[lane], node.least_id[lane]) > farthest) continue;
                const auto child = index * kWidth + lane;
                if (level > 0)
                    stack_.push_back({level - 1, child});
                else
                    leaves_.push_back(static_cast<std::int32_t>(child));
            }
            if (std::ssize(leaves_) > most) return false;
        }
        return true;
    }

    /// Gathers the points of the collected leaves that lie within `bound` of the box into contiguous buffers.
    void gather(const Box<T, D>& box, T bound)
    {
        const auto room = std::ssize(leaves_) * kWidth + 2 * kPointBlock;
        if (room > room_) {
            room_ = 2 * room;
            for (auto& axis : coordinates_) axis.resize(room_);
            ids_.resize(room_);
            squares_.resize(room_);
            near_ids_.resize(room_);
            sorted_squares_.resize(room_);
            sorted_ids_.resize(room_);
        }
        PointArrays<T> to{};
        num_points_ = 0;
        for (const auto l : leaves_) {
            const auto& leaf = tree_.leaves[l];
            for (int d = 0; d < D; ++d) to.x[d] = coordinates_[d].data() + num_points_;
            to.ids = ids_.data() + num_points_;
            num_points_ += gather_(reinterpret_cast<const T*>(&leaf.x), leaf.ids.data(), box.low.data(),
                                   box.high.data(), period_.length.data(), bound, to);
        }
        for (int i = 0; i < kPointBlock; ++i) coordinates_[0][num_points_ + i] = std::numeric_limits<T>::quiet_NaN();
    }

    std::int64_t filter(const Item<T, D>& query, T bound)
    {
        PointArrays<T> from{};
        for (int d = 0; d < D; ++d) from.x[d] = coordinates_[d].data();
        from.ids = ids_.data();
        return filter_(from, num_points_, query.x.data(), period_.length.data(), bound, squares_.data(),
                       near_ids_.data());
    }

    /// Sorts the points that `filter` has found for a query, and stores the nearest.
    void answer(const Item<T, D>& query, std::int64_t count)
    {
        const T* squares = sorted_squares_.data();
        const std::int32_t* ids = sorted_ids_.data();
        if (count <= kMaxSorted) {
            kernels_.sort(squares_.data(), near_ids_.data(), count, sorted_squares_.data(), sorted_ids_.data());
        } else {
            keys_.resize(count);
            for (std::int64_t i = 0; i < count; ++i) keys_[i] = make_key<T>(squares_[i], near_ids_[i]);
            if (count > wanted_) {
                std::nth_element(keys_.begin(), keys_.begin() + (wanted_ - 1), keys_.end());
                count = wanted_;
            }
            std::sort(keys_.begin(), keys_.begin() + count);
            for (std::int64_t i = 0; i < count; ++i) {
                sorted_squares_[i] = distance_squared_of<T>(keys_[i]);
                sorted_ids_[i] = id_of<T>(keys_[i]);
            }
        }
        count = std::min(count, wanted_);
        if (!request_.excluded.empty()) {
            const auto own = std::find(ids, ids + count, request_.excluded[query.id]) - ids;
            if (own < count) {
                std::copy(squares + own + 1, squares + count, sorted_squares_.data() + own);
                std::copy(ids + own + 1, ids + count, sorted_ids_.data() + own);
                --count;
            }
        }
        counts_.assign(request_.max_neighbors.size(), count);
        for (std::size_t list = 0; list < counts_.size(); ++list) {
            if (!request_.radii_squared.empty())
                counts_[list] = kernels_.count_up_to(squares, count, request_.radii_squared[list]);
            counts_[list] = std::min(counts_[list], request_.max_neighbors[list]);
        }
        found_.put(query.id, squares, ids, counts_, records_);
    }

    const Tree<T, D>& tree_;
    const Period<T, D>& period_;
    const SearchRequest<T, D>& request_;
    FoundNeighbors<T>& found_;
    Records<T>& records_;
    const std::int64_t wanted_;
    const bool limited_;
    const PointKernels<T>& kernels_ = point_kernels<T>();
    const typename PointKernels<T>::Gather gather_;
    const typename PointKernels<T>::Filter filter_;
    double estimated_reach_;  // estimated squared distance of the `wanted_`-th nearest point, in units of `scale_of`

    std::vector<std::int64_t> rows_, failed_, counts_;
    std::vector<T> bounds_;
    std::vector<std::int32_t> leaves_;
    std::vector<std::pair<int, std::int64_t>> stack_;
    std::int64_t num_points_ = 0, room_ = 0;
    std::array<std::vector<T>, D> coordinates_;
    std::vector<std::int32_t> ids_, near_ids_, sorted_ids_;
    std::vector<T> squares_, sorted_squares_;
    std::vector<Key<T>> keys_;
};

}  // namespace meshard::point_tree
