// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"
#include "ops/cuda/grid_shape.h"

#include <cmath>
#include <cstdint>

namespace meshard {

/// A candidate neighbour, ordered by distance, ties by id.
template <class T>
struct Candidate {
    T distance_squared;
    std::int32_t id;

    MESHARD_HOST_DEVICE bool operator<(const Candidate& other) const
    {
        return distance_squared < other.distance_squared ||
               (distance_squared == other.distance_squared && id < other.id);
    }
};

/// The nearest `capacity` candidates so far, in the caller's memory: a heap with the farthest on top.
template <class T>
struct NearestList {
    T* distances;  // squared, until `finish`
    std::int32_t* ids;
    std::int64_t capacity;
    std::int64_t size = 0;

    MESHARD_HOST_DEVICE Candidate<T> at(std::int64_t i) const { return {distances[i], ids[i]}; }
    MESHARD_HOST_DEVICE void set(std::int64_t i, const Candidate<T>& c) const
    {
        distances[i] = c.distance_squared;
        ids[i] = c.id;
    }

    MESHARD_HOST_DEVICE void sift_down(const Candidate<T>& c, std::int64_t end) const
    {
        std::int64_t i = 0;
        while (2 * i + 1 < end) {
            std::int64_t child = 2 * i + 1;
            if (child + 1 < end && at(child) < at(child + 1)) ++child;
            if (!(c < at(child))) break;
            set(i, at(child));
            i = child;
        }
        set(i, c);
    }

    MESHARD_HOST_DEVICE void add(const Candidate<T>& c)
    {
        if (size == capacity) {
            if (capacity > 0 && c < at(0)) sift_down(c, size);
            return;
        }
        std::int64_t i = size++;
        while (i > 0 && at((i - 1) / 2) < c) {
            set(i, at((i - 1) / 2));
            i = (i - 1) / 2;
        }
        set(i, c);
    }

    /// Sorts the candidates, nearest first, and replaces squared distances by distances.
    MESHARD_HOST_DEVICE void finish() const
    {
        for (std::int64_t end = size - 1; end > 0; --end) {
            const auto last = at(end);
            set(end, at(0));
            sift_down(last, end);
        }
        for (std::int64_t i = 0; i < size; ++i) distances[i] = std::sqrt(distances[i]);
    }
};

/// Queries of a search.
/// @param rows      (count, 3), in the form of the grid's points
/// @param excluded  null, or for each query the id of one point that is not a result, -1 for none
template <class T>
struct GridQueries {
    const T* rows;
    std::int64_t count;
    const std::int32_t* excluded = nullptr;
};

/// Points sorted by grid cell, for searches on a GPU: the counterpart of PointSearch. It finds the same neighbours in
/// the same order: squared distances are (dx dx + dy dy) + dz dz in the type of the coordinates, compared with radius *
/// radius in that type (compile without fused operations).
template <class T, class Executor>
class CellGrid {
public:
    /// @param points  (n, 3), finite; 0 on missing axes, in [0, period) on periodic axes (`place_rows_in_box`). Copied.
    CellGrid(const Executor& executor, const T* points, std::int64_t n, const GridShape& shape);

    /// Fills `offsets`: entries offsets[i], ..., offsets[i + 1] - 1 belong to query i, one for each point within the
    /// radius, at most `max_neighbors`.
    /// @param offsets  (queries + 1)
    void count(const GridQueries<T>& queries, T radius, std::int64_t max_neighbors, std::int64_t* offsets) const;

    /// Fills the entries, nearest first. @param ids, distances  (offsets[queries])
    void fill(const GridQueries<T>& queries, T radius, const std::int64_t* offsets, std::int32_t* ids,
              T* distances) const;

    /// The nearest offsets[i + 1] - offsets[i] points of query i, nearest first; the grid must have that many. Searches
    /// the cells nearby first; the distance of the last point found is an upper bound, within which all cells are then
    /// searched.
    void nearest(const GridQueries<T>& queries, const std::int64_t* offsets, std::int32_t* ids, T* distances) const;

    // Bodies of kernels, public because NVIDIA's compiler requires it.
    struct View {
        GridShape shape;
        const std::int64_t* starts;
        const std::int32_t* ids;
        const T* points;
        T period[3];  // infinite for open axes

        /// Calls `f(candidate)` for all points within `reach` of a query, and for some farther ones. Returns whether it
        /// was called for all points of the grid.
        template <class F>
        MESHARD_HOST_DEVICE bool for_each_near(const T* query, double reach, F&& f) const
        {
            constexpr double kSlack = sizeof(T) == 4 ? 1e-6 : 1e-15, kSmallest = sizeof(T) == 4 ? 1e-18 : 1e-150;
            // Covers rounding in T, and squares that underflow to zero.
            const double wide = reach * (1 + 1e-5) + kSmallest;
            CellRuns runs[3];
            for (int d = 0; d < 3; ++d) runs[d] = shape.runs(d, static_cast<double>(query[d]), wide, kSlack);
            for (int a = 0; a < runs[2].count; ++a) {
                for (std::int64_t z = runs[2].first[a]; z <= runs[2].last[a]; ++z) {
                    for (int b = 0; b < runs[1].count; ++b) {
                        for (std::int64_t y = runs[1].first[b]; y <= runs[1].last[b]; ++y) {
                            const auto row = shape.dims[0] * (y + shape.dims[1] * z);
                            for (int c = 0; c < runs[0].count; ++c)
                                each_in_row(query, row + runs[0].first[c], row + runs[0].last[c], f);
                        }
                    }
                }
            }
            return runs[0].is_all && runs[1].is_all && runs[2].is_all;
        }

        /// Visits the cells of a row, which are contiguous in memory.
        template <class F>
        MESHARD_HOST_DEVICE void each_in_row(const T* query, std::int64_t first, std::int64_t last, F& f) const
        {
            for (auto e = first > last ? 0 : starts[first], end = first > last ? 0 : starts[last + 1]; e < end; ++e) {
                T gaps[3];
                for (int d = 0; d < 3; ++d) {
                    const T gap = std::fabs(points[3 * e + d] - query[d]), around = period[d] - gap;
                    gaps[d] = around < gap ? around : gap;
                }
                f(Candidate<T>{(gaps[0] * gaps[0] + gaps[1] * gaps[1]) + gaps[2] * gaps[2], ids[e]});
            }
        }
    };

    struct Clear {
        std::int64_t* values;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const { values[i] = 0; }
    };

    struct Copy {
        const std::int64_t* from;
        std::int64_t* to;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const { to[i] = from[i]; }
    };

    struct Count {
        const T* points;
        GridShape shape;
        std::int64_t* counts;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            fetch_increment(counts[shape.cell_of(points + 3 * i)]);
        }
    };

    /// Puts the points into their cells, in any order; results are sorted later.
    struct Place {
        const T* points;
        GridShape shape;
        std::int64_t* next;
        std::int32_t* ids;
        T* placed;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            const auto place = fetch_increment(next[shape.cell_of(points + 3 * i)]);
            ids[place] = static_cast<std::int32_t>(i);
            for (int d = 0; d < 3; ++d) placed[3 * place + d] = points[3 * i + d];
        }
    };

    struct CountNear {
        View grid;
        GridQueries<T> queries;
        T radius;
        std::int64_t max_neighbors;
        std::int64_t* counts;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            std::int64_t count = 0;
            if (i < queries.count) {
                const auto excluded = queries.excluded ? queries.excluded[i] : -1;
                const T limit = radius * radius;
                grid.for_each_near(queries.rows + 3 * i, static_cast<double>(radius), [&](const Candidate<T>& c) {
                    count += c.distance_squared <= limit && c.id != excluded;
                });
            }
            counts[i] = count < max_neighbors ? count : max_neighbors;
        }
    };

    struct FillNear {
        View grid;
        GridQueries<T> queries;
        T radius;
        const std::int64_t* offsets;
        std::int32_t* ids;
        T* distances;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            NearestList<T> list{distances + offsets[i], ids + offsets[i], offsets[i + 1] - offsets[i]};
            const auto excluded = queries.excluded ? queries.excluded[i] : -1;
            const T limit = radius * radius;
            grid.for_each_near(queries.rows + 3 * i, static_cast<double>(radius), [&](const Candidate<T>& c) {
                if (c.distance_squared <= limit && c.id != excluded) list.add(c);
            });
            list.finish();
        }
    };

    struct FillNearest {
        View grid;
        GridQueries<T> queries;
        const std::int64_t* offsets;
        std::int32_t* ids;
        T* distances;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            NearestList<T> list{distances + offsets[i], ids + offsets[i], offsets[i + 1] - offsets[i]};
            if (list.capacity == 0) return;
            const auto excluded = queries.excluded ? queries.excluded[i] : -1;
            double reach = grid.shape.edge;
            while (true) {
                list.size = 0;
                const bool are_all = grid.for_each_near(queries.rows + 3 * i, reach, [&](const Candidate<T>& c) {
                    if (c.id != excluded) list.add(c);
                });
                const bool is_full = list.size == list.capacity;
                const double farthest =
                    is_full ? static_cast<double>(std::sqrt(list.at(0).distance_squared)) : 2 * reach;
                if (are_all || farthest <= reach) break;
                reach = farthest;
            }
            list.finish();
        }
    };

private:
    View view() const;

    Executor executor_;
    GridShape shape_;
    Buffer<std::int64_t> starts_;
    Buffer<std::int32_t> ids_;
    Buffer<T> points_;
};

template <class T, class Executor>
CellGrid<T, Executor>::CellGrid(const Executor& executor, const T* points, std::int64_t n, const GridShape& shape)
    : executor_(executor), shape_(shape), starts_(executor.template allocate<std::int64_t>(shape.num_cells() + 1)),
      ids_(executor.template allocate<std::int32_t>(n)), points_(executor.template allocate<T>(3 * n))
{
    const auto next = executor.template allocate<std::int64_t>(shape.num_cells() + 1);
    executor.for_each(shape.num_cells() + 1, Clear{starts_.data()});
    executor.for_each(n, Count{points, shape, starts_.data()});
    executor.exclusive_scan(starts_.data(), shape.num_cells() + 1);
    executor.for_each(shape.num_cells() + 1, Copy{starts_.data(), next.data()});
    executor.for_each(n, Place{points, shape, next.data(), ids_.data(), points_.data()});
}

template <class T, class Executor>
void CellGrid<T, Executor>::count(const GridQueries<T>& queries, T radius, std::int64_t max_neighbors,
                                  std::int64_t* offsets) const
{
    executor_.for_each(queries.count + 1, CountNear{view(), queries, radius, max_neighbors, offsets});
    executor_.exclusive_scan(offsets, queries.count + 1);
}

template <class T, class Executor>
void CellGrid<T, Executor>::fill(const GridQueries<T>& queries, T radius, const std::int64_t* offsets,
                                 std::int32_t* ids, T* distances) const
{
    executor_.for_each(queries.count, FillNear{view(), queries, radius, offsets, ids, distances});
}

template <class T, class Executor>
void CellGrid<T, Executor>::nearest(const GridQueries<T>& queries, const std::int64_t* offsets, std::int32_t* ids,
                                    T* distances) const
{
    executor_.for_each(queries.count, FillNearest{view(), queries, offsets, ids, distances});
}

template <class T, class Executor>
typename CellGrid<T, Executor>::View CellGrid<T, Executor>::view() const
{
    View view{shape_, starts_.data(), ids_.data(), points_.data(), {}};
    for (int d = 0; d < 3; ++d)
        view.period[d] = shape_.period[d] > 0 ? static_cast<T>(shape_.period[d]) : static_cast<T>(HUGE_VAL);
    return view;
}

template <class T>
struct PlaceRow {
    const T* rows;
    int dimensions;
    double period[3];
    T* placed;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        for (int d = 0; d < 3; ++d) {
            T x = d < dimensions ? rows[i * dimensions + d] : T{0};
            const T length = static_cast<T>(period[d]);
            if (length > 0) {
                x = x - length * std::floor(x / length);
                if (x >= length || x < 0) x = 0;
            }
            placed[3 * i + d] = x;
        }
    }
};

/// Converts points (n, dimensions) to the form that the grid needs: (n, 3), with zeros on missing axes, and in [0,
/// period) on periodic ones. @param period  (3); 0 for an open axis
template <class T, class Executor>
void place_rows_in_box(const Executor& executor, const T* rows, std::int64_t n, int dimensions, const double* period,
                       T* placed)
{
    executor.for_each(n, PlaceRow<T>{rows, dimensions, {period[0], period[1], period[2]}, placed});
}

}  // namespace meshard
