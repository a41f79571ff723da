// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cmath>
#include <cstdint>

namespace meshard {

/// The traversal of a grid that grid_walk.h describes, for one radius.
struct GridOrder {
    static constexpr double kMostCells = 1 << 30;  ///< upper bound of the magnitude of a cell's number

    float radius, width, per_width;

    explicit GridOrder(double r) : radius(static_cast<float>(r)), width(0.5f * radius), per_width(1.0f / width) {}
    MESHARD_HOST_DEVICE std::int32_t cell(float x) const
    {
        return static_cast<std::int32_t>(std::floor(x * per_width));
    }
};

template <class T>
struct CellOfPoint {
    const T* points;
    GridOrder order;
    std::int32_t* cells;
    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const { cells[i] = order.cell(static_cast<float>(points[i])); }
};

/// Writes the cell of each coordinate, (n, 3), to `cells`. Coordinates must be at most kMostCells cells from zero.
template <class T, class Executor>
void cells_in_grid_order(const Executor& executor, const T* points, std::int64_t n, const GridOrder& order,
                         std::int32_t* cells)
{
    executor.for_each(3 * n, CellOfPoint<T>{points, order, cells});
}

/// Points sorted by their cells (z, then y, then x) and ids.
template <class T>
struct OrderedPoints {
    const T* rows;              ///< (n, 3)
    const std::int32_t* cells;  ///< (n, 3), x first
    std::int64_t count;
};

template <class T>
struct WalkGrid {
    OrderedPoints<T> points;
    const T* queries;
    std::int64_t num_queries;
    GridOrder order;
    std::int64_t max_neighbors;
    std::int64_t* offsets;  // where `ids` is null, counts are written here
    std::int32_t* ids;
    T* distances;

    /// The first point from index `at` on that is in the cell or in a later one.
    MESHARD_HOST_DEVICE std::int64_t first_in(std::int64_t at, std::int32_t x, std::int32_t y, std::int32_t z) const
    {
        auto end = points.count;
        while (at < end) {
            const auto middle = at + (end - at) / 2;
            const auto* cell = points.cells + 3 * middle;
            const bool is_before = cell[2] != z ? cell[2] < z : cell[1] != y ? cell[1] < y : cell[0] < x;
            if (is_before)
                at = middle + 1;
            else
                end = middle;
        }
        return at;
    }

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        if (i == num_queries) {  // an extra entry for the scan
            if (!ids) offsets[i] = 0;
            return;
        }
        float q[3];
        std::int32_t first[3], last[3];
        for (int d = 0; d < 3; ++d) {
            q[d] = static_cast<float>(queries[3 * i + d]);
            first[d] = order.cell(q[d] - order.radius);
            last[d] = order.cell(q[d] + order.radius);
        }
        std::int64_t found = 0, at = 0;
        for (auto z = first[2]; z <= last[2] && found < max_neighbors; ++z) {
            for (auto y = first[1]; y <= last[1] && found < max_neighbors; ++y) {
                for (at = first_in(at, first[0], y, z); at < points.count && found < max_neighbors; ++at) {
                    const auto* cell = points.cells + 3 * at;
                    if (cell[2] != z || cell[1] != y || cell[0] > last[0]) break;
                    float squared = 0;
                    for (int d = 0; d < 3; ++d) {
                        const float gap = static_cast<float>(points.rows[3 * at + d]) - q[d];
                        squared += gap * gap;
                    }
                    if (squared > order.radius * order.radius) continue;
                    if (ids) {
                        ids[offsets[i] + found] = static_cast<std::int32_t>(at);
                        distances[offsets[i] + found] = static_cast<T>(std::sqrt(squared));
                    }
                    ++found;
                }
            }
        }
        if (!ids) offsets[i] = found;
    }
};

/// Fills `offsets`: entries offsets[i], ..., offsets[i + 1] - 1 belong to query i. @param offsets  (num_queries + 1)
template <class T, class Executor>
void count_in_grid_order(const Executor& executor, const OrderedPoints<T>& points, const T* queries,
                         std::int64_t num_queries, const GridOrder& order, std::int64_t max_neighbors,
                         std::int64_t* offsets)
{
    executor.for_each(num_queries + 1,
                      WalkGrid<T>{points, queries, num_queries, order, max_neighbors, offsets, nullptr, nullptr});
    executor.exclusive_scan(offsets, num_queries + 1);
}

/// Fills the entries; `ids` are indices into the ordered points.
template <class T, class Executor>
void fill_in_grid_order(const Executor& executor, const OrderedPoints<T>& points, const T* queries,
                        std::int64_t num_queries, const GridOrder& order, std::int64_t max_neighbors,
                        std::int64_t* offsets, std::int32_t* ids, T* distances)
{
    executor.for_each(num_queries,
                      WalkGrid<T>{points, queries, num_queries, order, max_neighbors, offsets, ids, distances});
}

}  // namespace meshard
