// SPDX-License-Identifier: Apache-2.0
// Included by one source for each instruction set, compiled with its flags: everything has internal linkage and no
// template of the standard library is instantiated, so that no code for a newer processor is linked into a program for
// an older one.
#pragma once

#include "ops/attention/window_kernels.h"  // this header instantiates nothing

#define MESHARD_ALWAYS_INLINE inline __attribute__((always_inline))

namespace meshard {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
struct WindowLanes {
    static constexpr std::int64_t kCount = kVectorBytes / sizeof(T);
    typedef T Vector __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));

    static MESHARD_ALWAYS_INLINE Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
    static MESHARD_ALWAYS_INLINE void store(T* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }
    /// Loads the numbers from `from` on, or for shared blocks the first one in every lane.
    template <bool kShared>
    static MESHARD_ALWAYS_INLINE Vector load_keys(const T* from)
    {
        return kShared ? Vector{} + *from : load(from);
    }
};

// Sums are kept in registers: each loaded number is used for `kSums` of them.
constexpr int kSums = 8;

/// Calls f.template operator()<n>() with the constant n = `count`, 1 to kMost.
template <int kMost, class F>
MESHARD_ALWAYS_INLINE void with_constant(std::int64_t count, const F& f)
{
    if (count == kMost)
        f.template operator()<kMost>();
    else if constexpr (kMost > 1)
        with_constant<kMost - 1>(count, f);
}

template <class T, bool kShared>
void window_scores(const WindowBlock& block, const T* queries, const T* keys, T* weights)
{
    using Lanes = WindowLanes<T>;
    const auto n = block.num_queries;
    for (std::int64_t t = 0; t < n; t += Lanes::kCount) {
        for (std::int64_t row = 0; row < block.rows; ++row) {
            for (std::int64_t first = 0; first < block.columns; first += kSums) {
                const T* key = keys + row * block.row_stride + first + (kShared ? 0 : t);
                T* to = weights + (row * block.columns + first) * n + t;
                const auto part = [&]<int kCount>() __attribute__((always_inline)) {
                    typename Lanes::Vector sums[kCount] = {};
                    for (std::int64_t channel = 0; channel < block.channels; ++channel) {
                        const auto query = Lanes::load(queries + channel * n + t);
#pragma GCC unroll 8
                        for (int i = 0; i < kCount; ++i)
                            sums[i] +=
                                query * Lanes::template load_keys<kShared>(key + channel * block.channel_stride + i);
                    }
#pragma GCC unroll 8
                    for (int i = 0; i < kCount; ++i) Lanes::store(to + i * n, sums[i]);
                };
                with_constant<kSums>(block.columns - first < kSums ? block.columns - first : kSums, part);
            }
        }
    }
}

template <class T, bool kShared>
void window_mix(const WindowBlock& block, const T* weights, const T* values, T* output)
{
    using Lanes = WindowLanes<T>;
    const auto n = block.num_queries;
    for (std::int64_t t = 0; t < n; t += Lanes::kCount) {
        for (std::int64_t first = 0; first < block.channels; first += kSums) {
            const auto part = [&]<int kCount>() __attribute__((always_inline)) {
                typename Lanes::Vector sums[kCount] = {};
                for (std::int64_t row = 0; row < block.rows; ++row) {
                    const T* value = values + row * block.row_stride + first * block.channel_stride + (kShared ? 0 : t);
                    const T* weight = weights + row * block.columns * n + t;
                    for (std::int64_t column = 0; column < block.columns; ++column) {
                        const auto factor = Lanes::load(weight + column * n);
#pragma GCC unroll 8
                        for (int i = 0; i < kCount; ++i)
                            sums[i] +=
                                factor * Lanes::template load_keys<kShared>(value + i * block.channel_stride + column);
                    }
                }
#pragma GCC unroll 8
                for (int i = 0; i < kCount; ++i) Lanes::store(output + (first + i) * n + t, sums[i]);
            };
            with_constant<kSums>(block.channels - first < kSums ? block.channels - first : kSums, part);
        }
    }
}

/// Sums by target: the key at column `at` gets the weight of column c from query at - c.
template <class T>
void window_spread(const WindowBlock& block, const T* weights, const T* x, std::int64_t x_stride, T* gradient)
{
    using Lanes = WindowLanes<T>;
    const auto n = block.num_queries;
    for (std::int64_t row = 0; row < block.rows; ++row) {
        for (std::int64_t at = 0; at < n + block.columns - 1; at += Lanes::kCount) {
            for (std::int64_t first = 0; first < block.channels; first += kSums) {
                const auto part = [&]<int kCount>() __attribute__((always_inline)) {
                    typename Lanes::Vector sums[kCount] = {};
                    for (std::int64_t column = 0; column < block.columns; ++column) {
                        const auto factor = Lanes::load(weights + (row * block.columns + column) * n + at - column);
                        const T* of_query = x + first * x_stride + at - column;
#pragma GCC unroll 8
                        for (int i = 0; i < kCount; ++i) sums[i] += factor * Lanes::load(of_query + i * x_stride);
                    }
                    T* to = gradient + row * block.row_stride + first * block.channel_stride + at;
#pragma GCC unroll 8
                    for (int i = 0; i < kCount; ++i)
                        Lanes::store(to + i * block.channel_stride,
                                     Lanes::load(to + i * block.channel_stride) + sums[i]);
                };
                with_constant<kSums>(block.channels - first < kSums ? block.channels - first : kSums, part);
            }
        }
    }
}

template <class T>
void window_spread_shared(const WindowBlock& block, const T* weights, std::int64_t num_real, const T* x,
                          std::int64_t x_stride, T* gradient, std::int64_t row_stride, std::int64_t column_stride)
{
    using Lanes = WindowLanes<T>;
    const auto n = block.num_queries;
    for (std::int64_t row = 0; row < block.rows; ++row) {
        for (std::int64_t first = 0; first < block.columns; first += kSums) {
            for (std::int64_t channel = 0; channel < block.channels; channel += Lanes::kCount) {
                const auto part = [&]<int kCount>() __attribute__((always_inline)) {
                    typename Lanes::Vector sums[kCount] = {};
                    const T* weight = weights + (row * block.columns + first) * n;
                    for (std::int64_t t = 0; t < num_real; ++t) {
                        const auto of_query = Lanes::load(x + t * x_stride + channel);
#pragma GCC unroll 8
                        for (int i = 0; i < kCount; ++i) sums[i] += of_query * weight[i * n + t];
                    }
                    const auto num_channels =
                        block.channels - channel < Lanes::kCount ? block.channels - channel : Lanes::kCount;
                    for (int i = 0; i < kCount; ++i) {
                        T* to = gradient + row * row_stride + (first + i) * column_stride + channel;
                        for (std::int64_t c = 0; c < num_channels; ++c) to[c] += sums[i][c];
                    }
                };
                with_constant<kSums>(block.columns - first < kSums ? block.columns - first : kSums, part);
            }
        }
    }
}

template <class T>
void any_window_scores(const WindowBlock& block, const T* queries, const T* keys, T* weights)
{
    block.shared ? window_scores<T, true>(block, queries, keys, weights)
                 : window_scores<T, false>(block, queries, keys, weights);
}

template <class T>
void any_window_mix(const WindowBlock& block, const T* weights, const T* values, T* output)
{
    block.shared ? window_mix<T, true>(block, weights, values, output)
                 : window_mix<T, false>(block, weights, values, output);
}

template <class T>
WindowKernels<T> window_kernels_here()
{
    return {WindowLanes<T>::kCount, any_window_scores<T>, any_window_mix<T>, window_spread<T>, window_spread_shared<T>};
}

}  // namespace
}  // namespace meshard
