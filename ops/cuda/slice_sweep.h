// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/executor.h"

#include <cmath>
#include <cstdint>
#include <type_traits>

// Loops over numbers in registers must be unrolled completely, since registers cannot be indexed.
#ifdef __CUDA_ARCH__
#define MESHARD_UNROLL _Pragma("unroll")
#else
#define MESHARD_UNROLL
#endif

namespace meshard {

/// Slice attention of the points of one sample (ops/fused/block_tile.h). The softmax over slices is computed again from
/// the logarithm of its sum wherever a weight is needed: nothing of the size of points times slices is stored.
///
///     w[n, h, s] = exp(x[n, h, :] . slices[h, s, :] + bias[h, s] - log_sums[n, h])
template <class T>
struct SlicedPoints {
    const T* x;       ///< (points, H, D)
    const T* slices;  ///< (H, S, D), temperature included
    const T* bias;    ///< (H, S)
    T* log_sums;      ///< (points, H)
    std::int64_t count;
    std::int64_t heads, num_slices, head_dim;
};

/// Number of points that one thread adds (a chunk). The sums of the chunks are added in a fixed order, so that sums
/// have the same bits every time.
inline constexpr std::int64_t kSliceChunk = 256;

/// The largest number of channels of a head that the kernels support.
inline constexpr std::int64_t kMaxHeadDim = 128;

inline std::int64_t num_slice_chunks(std::int64_t num_points)
{
    return (num_points + kSliceChunk - 1) / kSliceChunk;
}

/// The largest number of values of a row that a thread keeps in registers: 128 bytes. Five such rows fit the 255
/// registers of a thread.
template <class T>
inline constexpr int kRegisterRow = static_cast<int>(128 / sizeof(T));

/// The channels of one head at one point, in up to `Max` registers.
template <class T, int Max>
struct HeadRow {
    T values[Max];

    MESHARD_HOST_DEVICE static HeadRow load(const T* from, std::int64_t size)
    {
        HeadRow row;
        MESHARD_UNROLL
        for (int d = 0; d < Max; ++d) row.values[d] = d < size ? from[d] : T{0};
        return row;
    }

    MESHARD_HOST_DEVICE T dot(const T* other, std::int64_t size) const
    {
        T sum = 0;
        MESHARD_UNROLL
        for (int d = 0; d < Max; ++d) {
            if (d < size) sum += values[d] * other[d];
        }
        return sum;
    }
};

/// The channels of a head that is too wide for registers; they stay in memory.
template <class T>
struct HeadRow<T, 0> {
    const T* values;

    MESHARD_HOST_DEVICE static HeadRow load(const T* from, std::int64_t) { return {from}; }

    MESHARD_HOST_DEVICE T dot(const T* other, std::int64_t size) const
    {
        T sum = 0;
        for (std::int64_t d = 0; d < size; ++d) sum += values[d] * other[d];
        return sum;
    }
};

/// A thread's sums of the channels of a head: all channels, or a block of `Size`, in registers.
template <class T, int Size>
struct HeadSum {
    T values[Size];
    std::int64_t first, count;

    MESHARD_HOST_DEVICE HeadSum(std::int64_t block, std::int64_t head_dim)
        : first(block * Size), count(head_dim - first < Size ? head_dim - first : static_cast<std::int64_t>(Size))
    {
        MESHARD_UNROLL
        for (int d = 0; d < Size; ++d) values[d] = 0;
    }

    MESHARD_HOST_DEVICE void add(T factor, const T* row)
    {
        MESHARD_UNROLL
        for (int d = 0; d < Size; ++d) {
            if (d < count) values[d] += factor * row[first + d];
        }
    }

    MESHARD_HOST_DEVICE void store(T* row) const
    {
        MESHARD_UNROLL
        for (int d = 0; d < Size; ++d) {
            if (d < count) row[first + d] = values[d];
        }
    }
};

/// How threads share the channels of a head: one thread has all if they fit `Max` registers; otherwise each has a block
/// of channels and computes the weights itself.
template <class T, int Max>
struct HeadBlocks {
    static constexpr int kSize = Max > 0 ? Max : kRegisterRow<T>;
    using Row = HeadRow<T, Max>;
    using Sum = HeadSum<T, kSize>;

    MESHARD_HOST_DEVICE static std::int64_t count(std::int64_t head_dim)
    {
        return Max > 0 ? 1 : (head_dim + kSize - 1) / kSize;
    }
};

/// For each point and head: the logarithm of the sum of the exponentials.
template <class T, int Max>
struct SumExponentials {
    SlicedPoints<T> points;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const auto h = i % points.heads, D = points.head_dim, S = points.num_slices;
        const auto x = HeadRow<T, Max>::load(points.x + i * D, D);
        T largest = 0, sum = 0;
        for (std::int64_t s = 0; s < S; ++s) {
            const T logit = x.dot(points.slices + (h * S + s) * D, D) + points.bias[h * S + s];
            if (s == 0 || logit > largest) {
                sum = s == 0 ? T{1} : sum * std::exp(largest - logit) + T{1};
                largest = logit;
            } else {
                sum += std::exp(logit - largest);
            }
        }
        points.log_sums[i] = largest + std::log(sum);
    }
};

/// For each chunk, head, slice and block of channels: the sum of weighted features, then that of weights.
template <class T, int Max>
struct AddToSlices {
    using Blocks = HeadBlocks<T, Max>;
    SlicedPoints<T> points;
    const T* features;  // (points, H, D)
    T* sums;            // (chunks, H, S, D + 1)

    MESHARD_HOST_DEVICE void operator()(std::int64_t thread) const
    {
        const auto H = points.heads, S = points.num_slices, D = points.head_dim, blocks = Blocks::count(D);
        const auto block = thread % blocks, i = thread / blocks, hs = i % (H * S), h = hs / S, chunk = i / (H * S);
        const auto slice = Blocks::Row::load(points.slices + hs * D, D);
        typename Blocks::Sum sum(block, D);
        T total = 0;
        const auto end = (chunk + 1) * kSliceChunk < points.count ? (chunk + 1) * kSliceChunk : points.count;
        for (auto n = chunk * kSliceChunk; n < end; ++n) {
            const T weight =
                std::exp(slice.dot(points.x + (n * H + h) * D, D) + points.bias[hs] - points.log_sums[n * H + h]);
            sum.add(weight, features + (n * H + h) * D);
            total += weight;
        }
        sum.store(sums + i * (D + 1));
        if (block == 0) sums[i * (D + 1) + D] = total;
    }
};

/// For each point, head and block of channels: the sum of the slices' states, weighted by the point's softmax weights.
template <class T, int Max>
struct BringBack {
    using Blocks = HeadBlocks<T, Max>;
    SlicedPoints<T> points;
    const T* states;  // (H, S, D)
    T* mixed;         // (points, H, D)

    MESHARD_HOST_DEVICE void operator()(std::int64_t thread) const
    {
        const auto D = points.head_dim, S = points.num_slices, blocks = Blocks::count(D);
        const auto block = thread % blocks, i = thread / blocks, h = i % points.heads;
        const auto x = Blocks::Row::load(points.x + i * D, D);
        typename Blocks::Sum sum(block, D);
        for (std::int64_t s = 0; s < S; ++s) {
            const auto hs = h * S + s;
            sum.add(std::exp(x.dot(points.slices + hs * D, D) + points.bias[hs] - points.log_sums[i]), states + hs * D);
        }
        sum.store(mixed + i * D);
    }
};

/// Inputs and results of the backward pass for each point.
template <class T>
struct SliceGradients {
    const T* states;          ///< (H, S, D)
    const T* sums_gradient;   ///< (H, S, D + 1)
    const T* features;        ///< (points, H, D)
    const T* mixed_gradient;  ///< (points, H, D)
    T* x_gradient;            ///< (points, H, D)
    T* features_gradient;     ///< (points, H, D)
    T* means;                 ///< (points, H): means of the weights' gradients, weighted by the weights
};

/// For each point, head and block of channels: gradients of x (through the softmax) and of the features.
template <class T, int Max>
struct PointGradients {
    using Blocks = HeadBlocks<T, Max>;
    SlicedPoints<T> points;
    SliceGradients<T> of;

    MESHARD_HOST_DEVICE void operator()(std::int64_t thread) const
    {
        const auto D = points.head_dim, S = points.num_slices, blocks = Blocks::count(D);
        const auto block = thread % blocks, i = thread / blocks, h = i % points.heads;
        const auto x = Blocks::Row::load(points.x + i * D, D), features = Blocks::Row::load(of.features + i * D, D),
                   mixed = Blocks::Row::load(of.mixed_gradient + i * D, D);
        typename Blocks::Sum features_gradient(block, D), x_gradient(block, D);
        T mean = 0;
        for (std::int64_t s = 0; s < S; ++s) {
            const auto hs = h * S + s;
            const T* g = of.sums_gradient + hs * (D + 1);
            const T weight = std::exp(x.dot(points.slices + hs * D, D) + points.bias[hs] - points.log_sums[i]);
            mean += weight * (mixed.dot(of.states + hs * D, D) + features.dot(g, D) + g[D]);
            features_gradient.add(weight, g);
        }
        features_gradient.store(of.features_gradient + i * D);
        for (std::int64_t s = 0; s < S; ++s) {
            const auto hs = h * S + s;
            const T* g = of.sums_gradient + hs * (D + 1);
            const T weight = std::exp(x.dot(points.slices + hs * D, D) + points.bias[hs] - points.log_sums[i]);
            x_gradient.add(weight * (mixed.dot(of.states + hs * D, D) + features.dot(g, D) + g[D] - mean),
                           points.slices + hs * D);
        }
        x_gradient.store(of.x_gradient + i * D);
        if (block == 0) of.means[i] = mean;
    }
};

/// For each chunk, head, slice and block of channels: gradients of the slice's row of `slices`, then of its bias. Runs
/// after PointGradients.
template <class T, int Max>
struct SliceWeightGradients {
    using Blocks = HeadBlocks<T, Max>;
    SlicedPoints<T> points;
    SliceGradients<T> of;
    T* sums;  // (chunks, H, S, D + 1)

    MESHARD_HOST_DEVICE void operator()(std::int64_t thread) const
    {
        const auto H = points.heads, S = points.num_slices, D = points.head_dim, blocks = Blocks::count(D);
        const auto block = thread % blocks, i = thread / blocks, hs = i % (H * S), h = hs / S, chunk = i / (H * S);
        const T* g = of.sums_gradient + hs * (D + 1);
        const auto slice = Blocks::Row::load(points.slices + hs * D, D),
                   state = Blocks::Row::load(of.states + hs * D, D), sum_gradient = Blocks::Row::load(g, D);
        typename Blocks::Sum sum(block, D);
        T total = 0;
        const auto end = (chunk + 1) * kSliceChunk < points.count ? (chunk + 1) * kSliceChunk : points.count;
        for (auto n = chunk * kSliceChunk; n < end; ++n) {
            const auto row = n * H + h;
            const T weight = std::exp(slice.dot(points.x + row * D, D) + points.bias[hs] - points.log_sums[row]);
            const T gradient = weight * (state.dot(of.mixed_gradient + row * D, D) +
                                         sum_gradient.dot(of.features + row * D, D) + g[D] - of.means[row]);
            sum.add(gradient, points.x + row * D);
            total += gradient;
        }
        sum.store(sums + i * (D + 1));
        if (block == 0) sums[i * (D + 1) + D] = total;
    }
};

/// Calls `f` with the number of a head's channels that are kept in registers, as a type, and with the number of blocks
/// of channels.
template <class T, class F>
void with_head_dim(std::int64_t head_dim, const F& f)
{
    const auto call = [&](auto max) { f(max, HeadBlocks<T, max.value>::count(head_dim)); };
    if (head_dim <= 16)
        call(std::integral_constant<int, 16>());
    else if (head_dim <= kRegisterRow<T>)
        call(std::integral_constant<int, kRegisterRow<T>>());
    else
        call(std::integral_constant<int, 0>());
}

/// Fills `points.log_sums`; must be called before the other functions.
template <class T, class Executor>
void sum_exponentials(const Executor& executor, const SlicedPoints<T>& points)
{
    with_head_dim<T>(points.head_dim, [&](auto max, auto) {
        executor.for_each(points.count * points.heads, SumExponentials<T, max.value>{points});
    });
}

/// @param sums  (num_slice_chunks, H, S, D + 1), partial sums for each chunk: weighted features, then weights
template <class T, class Executor>
void add_to_slices(const Executor& executor, const SlicedPoints<T>& points, const T* features, T* sums)
{
    const auto rows = num_slice_chunks(points.count) * points.heads * points.num_slices;
    with_head_dim<T>(points.head_dim, [&](auto max, auto blocks) {
        executor.for_each(rows * blocks, AddToSlices<T, max.value>{points, features, sums});
    });
}

template <class T, class Executor>
void bring_back_from_slices(const Executor& executor, const SlicedPoints<T>& points, const T* states, T* mixed)
{
    with_head_dim<T>(points.head_dim, [&](auto max, auto blocks) {
        executor.for_each(points.count * points.heads * blocks, BringBack<T, max.value>{points, states, mixed});
    });
}

/// @param weight_sums  (num_slice_chunks, H, S, D + 1), partial sums for each chunk: gradients of the slices, then of
/// their bias
template <class T, class Executor>
void slice_gradients(const Executor& executor, const SlicedPoints<T>& points, const SliceGradients<T>& of,
                     T* weight_sums)
{
    const auto rows = num_slice_chunks(points.count) * points.heads * points.num_slices;
    with_head_dim<T>(points.head_dim, [&](auto max, auto blocks) {
        executor.for_each(points.count * points.heads * blocks, PointGradients<T, max.value>{points, of});
        executor.for_each(rows * blocks, SliceWeightGradients<T, max.value>{points, of, weight_sums});
    });
}

}  // namespace meshard
