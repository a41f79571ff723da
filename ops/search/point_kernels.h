// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace meshard {

/// The inner loops of point_search.h, in the widest vectors that this processor has, with the same bits on every
/// processor: squared distances are (dx dx + dy dy) + dz dz, without fused operations.
///
/// Points are stored as one array for each axis, padded with NaN to blocks of `kPointBlock`; arrays that are written to
/// must have room for one block more than the values written.
inline constexpr int kPointBlock = 16;

template <class T>
struct PointArrays {
    T* x[3];
    std::int32_t* ids;
};

template <class T>
struct PointKernels {
    /// Copies those points of a leaf (kLeafPoints coordinates of each axis) whose squared distance from the box `low`
    /// to `high` is at most `bound`; returns their number.
    using Gather = std::int64_t (*)(const T* leaf, const std::int32_t* ids, const T* low, const T* high,
                                    const T* period, T bound, const PointArrays<T>& to);
    /// Writes squared distances and ids of those of the `count` points (padded to whole blocks) whose squared distance
    /// from x is at most `bound`, in their order; returns their number.
    using Filter = std::int64_t (*)(const PointArrays<T>& points, std::int64_t count, const T* x, const T* period,
                                    T bound, T* squares, std::int32_t* ids);

    /// gather[dimensions - 1][periodic]; `periodic` is 1 if some axis is periodic.
    Gather gather[3][2];
    Filter filter[3][2];
    /// Sorts by (square, id); `count` is at most kMaxSorted.
    void (*sort)(const T* squares, const std::int32_t* ids, std::int64_t count, T* sorted_squares,
                 std::int32_t* sorted_ids);
    void (*roots)(const T* squares, std::int64_t count, T* roots);
    /// Returns how many of the `count` values are at most `bound`.
    std::int64_t (*count_up_to)(const T* squares, std::int64_t count, T bound);
    /// Copies exactly `count` ids and distances, without padding.
    void (*copy)(const std::int32_t* ids, const T* distances, std::int64_t count, std::int32_t* to_ids,
                 T* to_distances);
};

inline constexpr std::int64_t kMaxSorted = 64;
inline constexpr int kLeafPoints = 8;

/// The kernels of all instruction sets that this processor has, the simplest first.
template <class T>
const std::vector<PointKernels<T>>& usable_point_kernels();

/// The last of them, with the widest vectors.
template <class T>
const PointKernels<T>& point_kernels();

}  // namespace meshard
