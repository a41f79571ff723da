// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/cuda/executor.h"

namespace meshard {

/// Where the cells of a grid lie: cubes of edge `edge` from `low`, numbered with x fastest.
struct GridShape {
    double low[3] = {0, 0, 0};
    double edge = 1;
    std::int32_t dims[3] = {1, 1, 1};

    MESHARD_HOST_DEVICE std::int64_t num_cells() const { return static_cast<std::int64_t>(dims[0]) * dims[1] * dims[2]; }

    /// Cell along an axis; what lies outside counts to the outermost ones. Never falls as x grows.
    MESHARD_HOST_DEVICE std::int32_t along(int axis, double x) const
    {
        const double cell = floor((x - low[axis]) / edge);
        return cell < 0 ? 0 : cell >= dims[axis] ? dims[axis] - 1 : static_cast<std::int32_t>(cell);
    }

    template <class T>
    MESHARD_HOST_DEVICE std::int64_t cell_of(const T* point) const
    {
        return along(0, point[0]) + static_cast<std::int64_t>(dims[0]) * (along(1, point[1]) + static_cast<std::int64_t>(dims[1]) * along(2, point[2]));
    }
};

/// Cells no smaller than the radius and no more than two a point, over the box from `low` to `high`.
inline GridShape grid_shape(const double* low, const double* high, double radius, std::int64_t num_points)
{
    GridShape shape;
    shape.edge = radius;
    const double most = 2.0 * static_cast<double>(num_points > 0 ? num_points : 1);
    for (double cells = most + 1; cells > most; shape.edge *= cells > most ? 1.25 : 1) {
        cells = 1;
        for (int d = 0; d < 3; ++d) {
            const double along = std::floor((high[d] - low[d]) / shape.edge) + 1;
            shape.low[d] = low[d];
            shape.dims[d] = along < 1 ? 1 : along > 2e9 ? 2000000000 : static_cast<std::int32_t>(along);
            cells *= along;
        }
    }
    return shape;
}

/// A neighbour while it is looked for; the nearer ones first, ties by id.
template <class T>
struct Candidate {
    T distance_squared;
    std::int32_t id;

    MESHARD_HOST_DEVICE bool operator<(const Candidate& other) const
    {
        return distance_squared < other.distance_squared || (distance_squared == other.distance_squared && id < other.id);
    }
};

/// The nearest of the candidates seen, in memory for `capacity` of them: a heap with the farthest on top.
template <class T>
struct NearestList {
    T* distances;          // squared
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

    MESHARD_HOST_DEVICE void sort() const
    {
        for (std::int64_t end = size - 1; end > 0; --end) {
            const auto last = at(end);
            set(end, at(0));
            sift_down(last, end);
        }
    }
};

/// Points in the order of their cells, for searches on a GPU: what PointSearch is on the host. Finds the same neighbours in the same order: squared
/// distances are (dx dx + dy dy) + dz dz in the type of the coordinates, compared with radius * radius in that type (compile without fused operations).
template <class T, class Executor>
class CellGrid {
public:
    /// @param points  (n, 3), finite; missing axes 0. Copied.
    CellGrid(const Executor& executor, const T* points, std::int64_t n, const GridShape& shape)
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

    /// offsets[i], ..., offsets[i + 1] - 1 become the entries of query i: as many as there are within the radius, at most `max_neighbors`.
    /// @param queries  (m, 3)  @param offsets  (m + 1)
    void count(const T* queries, std::int64_t m, T radius, std::int64_t max_neighbors, std::int64_t* offsets) const
    {
        executor_.for_each(m + 1, CountNear{view(), queries, m, radius, max_neighbors, offsets});
        executor_.exclusive_scan(offsets, m + 1);
    }

    /// The entries themselves, nearest first. @param ids, distances  (offsets[m])
    void fill(const T* queries, std::int64_t m, T radius, const std::int64_t* offsets, std::int32_t* ids, T* distances) const
    {
        executor_.for_each(m, FillNear{view(), queries, radius, offsets, ids, distances});
    }

    // Bodies of kernels, public because NVIDIA's compiler wants them so.
    struct View {
        GridShape shape;
        const std::int64_t* starts;
        const std::int32_t* ids;
        const T* points;

        /// Calls `f(candidate)` for every point within the radius.
        template <class F>
        MESHARD_HOST_DEVICE void for_each_near(const T* query, T radius, F&& f) const
        {
            std::int32_t first[3], last[3];
            const double reach = static_cast<double>(radius) * (1 + 1e-5);   // rounding in T never reaches a cell beyond
            for (int d = 0; d < 3; ++d) {
                first[d] = shape.along(d, static_cast<double>(query[d]) - reach);
                last[d] = shape.along(d, static_cast<double>(query[d]) + reach);
            }
            const T limit = radius * radius;
            for (std::int64_t z = first[2]; z <= last[2]; ++z) {
                for (std::int64_t y = first[1]; y <= last[1]; ++y) {
                    const auto row = shape.dims[0] * (y + shape.dims[1] * z);
                    // Cells of a row lie one after the other.
                    for (auto e = starts[row + first[0]]; e < starts[row + last[0] + 1]; ++e) {
                        const T dx = points[3 * e] - query[0], dy = points[3 * e + 1] - query[1], dz = points[3 * e + 2] - query[2];
                        const T distance_squared = (dx * dx + dy * dy) + dz * dz;
                        if (distance_squared <= limit) f(Candidate<T>{distance_squared, ids[e]});
                    }
                }
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
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const { fetch_increment(counts[shape.cell_of(points + 3 * i)]); }
    };

    /// Points of a cell come in any order: results are sorted.
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
        const T* queries;
        std::int64_t m;
        T radius;
        std::int64_t max_neighbors;
        std::int64_t* counts;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            std::int64_t count = 0;
            if (i < m) grid.for_each_near(queries + 3 * i, radius, [&](const Candidate<T>&) { ++count; });
            counts[i] = count < max_neighbors ? count : max_neighbors;
        }
    };

    struct FillNear {
        View grid;
        const T* queries;
        T radius;
        const std::int64_t* offsets;
        std::int32_t* ids;
        T* distances;
        MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
        {
            NearestList<T> list{distances + offsets[i], ids + offsets[i], offsets[i + 1] - offsets[i]};
            grid.for_each_near(queries + 3 * i, radius, [&](const Candidate<T>& c) { list.add(c); });
            list.sort();
            for (std::int64_t k = 0; k < list.size; ++k) list.distances[k] = sqrt(list.distances[k]);
        }
    };

private:
    View view() const { return {shape_, starts_.data(), ids_.data(), points_.data()}; }

    Executor executor_;
    GridShape shape_;
    Buffer<std::int64_t> starts_;
    Buffer<std::int32_t> ids_;
    Buffer<T> points_;
};

}  // namespace meshard
