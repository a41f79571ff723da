// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace meshard {

/// The inner loops of point_search.h, in the widest vectors that this processor has. The same bits on every processor: squared distances are
/// (dx dx + dy dy) + dz dz, without fused operations.
///
/// Points come as one array an axis, in blocks of `kPointBlock` that are filled up with NaN; arrays that are written to must have room for a block
/// more than they will hold.
inline constexpr int kPointBlock = 16;

template <class T>
struct PointArrays {
    T* x[3];
    std::int32_t* ids;
};

template <class T>
struct PointKernels {
    /// Appends the points of a leaf (`leaf` of them, coordinates axis by axis) within `bound` of a box; returns how many.
    using Gather = std::int64_t (*)(const T* leaf, const std::int32_t* ids, const T* low, const T* high, const T* period, T bound, const PointArrays<T>& to);
    /// Squared distances and ids of the `count` points, filled up to whole blocks, that lie within `bound` of x, in their order; returns how many.
    using Filter = std::int64_t (*)(const PointArrays<T>& points, std::int64_t count, const T* x, const T* period, T bound, T* squares, std::int32_t* ids);

    /// For 1 to 3 dimensions; [1] for boxes in which some axis repeats after `period`.
    Gather gather[3][2];
    Filter filter[3][2];
    /// Sorts by (square, id) what is at most kMaxSorted.
    void (*sort)(const T* squares, const std::int32_t* ids, std::int64_t count, T* sorted_squares, std::int32_t* sorted_ids);
    void (*roots)(const T* squares, std::int64_t count, T* roots);
    /// How many of the `count` are at most `bound`.
    std::int64_t (*count_up_to)(const T* squares, std::int64_t count, T bound);
    /// Writes what it copies and nothing beyond.
    void (*copy)(const std::int32_t* ids, const T* distances, std::int64_t count, std::int32_t* to_ids, T* to_distances);
};

inline constexpr std::int64_t kMaxSorted = 64;
inline constexpr int kLeafPoints = 8;

/// All that this processor can run, the plainest first.
template <class T>
const std::vector<PointKernels<T>>& usable_point_kernels();

/// The last of them.
template <class T>
const PointKernels<T>& point_kernels();

}  // namespace meshard
