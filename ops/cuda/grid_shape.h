// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cmath>
#include <cstdint>

namespace meshard {

/// Ranges of cells along one axis within a query's reach: one, or two on a periodic axis, at its two ends.
struct CellRuns {
    std::int32_t first[2], last[2];
    int count = 1;
    bool is_all = false;  ///< the whole axis
};

/// Shape of a uniform grid: cubes of edge length `edge`, the first at `low`, numbered with x fastest.
struct GridShape {
    double low[3] = {0, 0, 0};
    double edge = 1;
    std::int32_t dims[3] = {1, 1, 1};
    double period[3] = {0, 0, 0};  ///< 0 for an open axis; else coordinates are in [0, period)

    MESHARD_HOST_DEVICE std::int64_t num_cells() const
    {
        return static_cast<std::int64_t>(dims[0]) * dims[1] * dims[2];
    }

    /// Index of the cell of x along an axis, clamped to the grid. Monotonic in x.
    MESHARD_HOST_DEVICE std::int32_t along(int axis, double x) const
    {
        const double cell = std::floor((x - low[axis]) / edge);
        return cell < 0 ? 0 : cell >= dims[axis] ? dims[axis] - 1 : static_cast<std::int32_t>(cell);
    }

    template <class T>
    MESHARD_HOST_DEVICE std::int64_t cell_of(const T* point) const
    {
        return along(0, point[0]) + static_cast<std::int64_t>(dims[0]) *
                                        (along(1, point[1]) + static_cast<std::int64_t>(dims[1]) * along(2, point[2]));
    }

    /// @param slack   rounding error of a distance around the end of a periodic axis, as a share of the period
    MESHARD_HOST_DEVICE CellRuns runs(int axis, double x, double reach, double slack) const
    {
        CellRuns runs{{along(axis, x - reach)}, {along(axis, x + reach)}};
        const double around = reach + slack * period[axis], after = x + period[axis] - around,
                     before = x - period[axis] + around;
        if (period[axis] > 0 && 2 * around >= period[axis]) {
            runs.first[0] = 0;
            runs.last[0] = dims[axis] - 1;
        } else if (period[axis] > 0 && after < period[axis]) {
            runs.first[1] = along(axis, after);
            if (runs.first[1] <= runs.last[0]) runs.first[1] = runs.last[0] + 1;
            runs.last[1] = dims[axis] - 1;
            runs.count = 2;
        } else if (period[axis] > 0 && before >= 0) {
            runs.first[1] = 0;
            runs.last[1] = along(axis, before);
            if (runs.last[1] >= runs.first[0]) runs.last[1] = runs.first[0] - 1;
            runs.count = 2;
        }
        std::int32_t cells = 0;
        for (int r = 0; r < runs.count; ++r) cells += runs.last[r] - runs.first[r] + 1;
        runs.is_all = cells == dims[axis];
        return runs;
    }
};

/// A grid over the box from `low` to `high` with cells of edge `edge` or larger, and at most `most` of them.
inline GridShape grid_shape(const double* low, const double* high, double edge, std::int64_t most)
{
    GridShape shape;
    shape.edge = edge;
    const double limit = static_cast<double>(most > 0 ? most : 1);
    for (double cells = limit + 1; cells > limit; shape.edge *= cells > limit ? 1.25 : 1) {
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

/// A grid for radius searches: cells as large as the radius, or larger if there were more than two cells for each
/// point.
inline GridShape grid_for_radius(const double* low, const double* high, double radius, std::int64_t num_points)
{
    return grid_shape(low, high, radius, 2 * num_points);
}

/// A grid for searches of the k nearest. For evenly distributed points its cells have about two points each, or k / 4
/// if that is more.
inline GridShape grid_for_nearest(const double* low, const double* high, std::int64_t k, std::int64_t num_points)
{
    double longest = 0;
    for (int d = 0; d < 3; ++d) longest = std::fmax(longest, high[d] - low[d]);
    const auto points = k / 4 > 2 ? k / 4 : 2;
    return grid_shape(low, high, longest > 0 ? 1e-7 * longest : 1.0, num_points / points);
}

}  // namespace meshard
