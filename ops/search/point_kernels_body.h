// SPDX-License-Identifier: Apache-2.0
// Included by one source for each instruction set, compiled with its flags: everything has internal linkage and no
// template of the standard library is instantiated, so that no code for a newer processor is linked into a program for
// an older one.
#pragma once

#include "ops/search/point_kernels.h"  // this header instantiates nothing

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace meshard {
namespace {

/// Operations on vectors of `N` numbers, and on the lanes that a mask selects.
template <class T, int N>
struct Lanes {
    typedef T Vector __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
    using Mask = unsigned;

    static Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }

    static Mask up_to(Vector a, T bound)
    {
        Mask mask = 0;
        for (int i = 0; i < N; ++i) mask |= static_cast<Mask>(a[i] <= bound) << i;
        return mask;
    }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static void store(Mask mask, Vector a, T* to)
    {
        for (int i = 0; i < N; ++i) {
            *to = a[i];
            to += mask >> i & 1;
        }
    }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        for (int i = 0; i < N; ++i) {
            *to = ids[i];
            to += mask >> i & 1;
        }
    }
};

#if defined(__AVX512VL__)

template <>
struct Lanes<float, 16> {
    typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
    using Mask = __mmask16;
    static Vector load(const float* from) { return _mm512_loadu_ps(from); }
    static Mask up_to(Vector a, float bound) { return _mm512_cmp_ps_mask(a, _mm512_set1_ps(bound), _CMP_LE_OQ); }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static void store(Mask mask, Vector a, float* to) { _mm512_storeu_ps(to, _mm512_maskz_compress_ps(mask, a)); }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(mask, _mm512_loadu_si512(ids)));
    }
};

template <>
struct Lanes<float, 8> {
    typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
    using Mask = __mmask8;
    static Vector load(const float* from) { return _mm256_loadu_ps(from); }
    static Mask up_to(Vector a, float bound) { return _mm256_cmp_ps_mask(a, _mm256_set1_ps(bound), _CMP_LE_OQ); }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static void store(Mask mask, Vector a, float* to) { _mm256_storeu_ps(to, _mm256_maskz_compress_ps(mask, a)); }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(to),
            _mm256_maskz_compress_epi32(mask, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids))));
    }
};

template <>
struct Lanes<double, 8> {
    typedef double Vector __attribute__((vector_size(64), aligned(8), may_alias));
    using Mask = __mmask8;
    static Vector load(const double* from) { return _mm512_loadu_pd(from); }
    static Mask up_to(Vector a, double bound) { return _mm512_cmp_pd_mask(a, _mm512_set1_pd(bound), _CMP_LE_OQ); }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static void store(Mask mask, Vector a, double* to) { _mm512_storeu_pd(to, _mm512_maskz_compress_pd(mask, a)); }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        Lanes<float, 8>::store_ids(mask, ids, to);
    }
};

template <class T>
inline constexpr int kWidest = 64 / sizeof(T);

#elif defined(__AVX2__)

/// For every mask of `N` lanes the positions of the selected lanes, in order, in units of 32 bits: each lane has
/// `Parts` units.
template <int N, int Parts>
struct LanePositions {
    alignas(32) std::int32_t of[1 << N][N * Parts]{};
    constexpr LanePositions()
    {
        for (int mask = 0; mask < 1 << N; ++mask) {
            int next = 0;
            for (int lane = 0; lane < N; ++lane) {
                if (mask >> lane & 1) {
                    for (int part = 0; part < Parts; ++part) of[mask][next++] = lane * Parts + part;
                }
            }
        }
    }
};

template <>
struct Lanes<float, 8> {
    typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));
    using Mask = unsigned;
    static constexpr LanePositions<8, 1> kPositions{};
    static Vector load(const float* from) { return _mm256_loadu_ps(from); }
    static Mask up_to(Vector a, float bound)
    {
        return static_cast<Mask>(_mm256_movemask_ps(_mm256_cmp_ps(a, _mm256_set1_ps(bound), _CMP_LE_OQ)));
    }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static __m256i positions(Mask mask)
    {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(kPositions.of[mask]));
    }
    static void store(Mask mask, Vector a, float* to)
    {
        _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(a, positions(mask)));
    }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        const auto all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(all, positions(mask)));
    }
};

template <>
struct Lanes<double, 4> {
    typedef double Vector __attribute__((vector_size(32), aligned(8), may_alias));
    using Mask = unsigned;
    static constexpr LanePositions<4, 2> kPositions{};
    static constexpr LanePositions<4, 1> kIdPositions{};
    static Vector load(const double* from) { return _mm256_loadu_pd(from); }
    static Mask up_to(Vector a, double bound)
    {
        return static_cast<Mask>(_mm256_movemask_pd(_mm256_cmp_pd(a, _mm256_set1_pd(bound), _CMP_LE_OQ)));
    }
    static int count(Mask mask) { return __builtin_popcount(mask); }
    static void store(Mask mask, Vector a, double* to)
    {
        const auto positions = _mm256_load_si256(reinterpret_cast<const __m256i*>(kPositions.of[mask]));
        _mm256_storeu_ps(reinterpret_cast<float*>(to), _mm256_permutevar8x32_ps(_mm256_castpd_ps(a), positions));
    }
    static void store_ids(Mask mask, const std::int32_t* ids, std::int32_t* to)
    {
        const auto positions = _mm_load_si128(reinterpret_cast<const __m128i*>(kIdPositions.of[mask]));
        _mm_storeu_ps(reinterpret_cast<float*>(to),
                      _mm_permutevar_ps(_mm_loadu_ps(reinterpret_cast<const float*>(ids)), positions));
    }
};

template <class T>
inline constexpr int kWidest = 32 / sizeof(T);

#else

template <class T>
inline constexpr int kWidest = 16 / sizeof(T);

#endif

template <class V>
inline V larger(V a, V b)
{
    return a > b ? a : b;
}

template <class T, int D, bool Periodic>
std::int64_t gather(const T* leaf, const std::int32_t* ids, const T* low, const T* high, const T* period, T bound,
                    const PointArrays<T>& to)
{
    constexpr int width = kWidest<T> < kLeafPoints ? kWidest<T> : kLeafPoints;
    using L = Lanes<T, width>;
    std::int64_t count = 0;
    for (int i = 0; i < kLeafPoints; i += width) {
        typename L::Vector sum{}, x[D];
        for (int d = 0; d < D; ++d) {
            x[d] = L::load(leaf + d * kLeafPoints + i);
            auto gap = larger(larger(x[d] - high[d], low[d] - x[d]), typename L::Vector{});
            if constexpr (Periodic) {
                const auto farthest = larger(high[d] - x[d], x[d] - low[d]);
                const auto around = larger(period[d] - farthest, typename L::Vector{});
                gap = gap < around ? gap : around;
            }
            sum = d == 0 ? gap * gap : sum + gap * gap;
        }
        const auto mask = L::up_to(sum, bound);
        for (int d = 0; d < D; ++d) L::store(mask, x[d], to.x[d] + count);
        L::store_ids(mask, ids + i, to.ids + count);
        count += L::count(mask);
    }
    return count;
}

template <class T, int D, bool Periodic>
std::int64_t filter(const PointArrays<T>& points, std::int64_t count, const T* x, const T* period, T bound, T* squares,
                    std::int32_t* ids)
{
    constexpr int width = kWidest<T>;
    using L = Lanes<T, width>;
    const T* const* from = points.x;
    std::int64_t chosen = 0;
    for (std::int64_t i = 0; i < count; i += width) {
        typename L::Vector sum{};
        for (int d = 0; d < D; ++d) {
            auto gap = L::load(from[d] + i) - x[d];
            if constexpr (Periodic) {
                gap = larger(-gap, gap);
                const auto around = period[d] - gap;
                gap = around < gap ? around : gap;
            }
            sum = d == 0 ? gap * gap : sum + gap * gap;
        }
        const auto mask = L::up_to(sum, bound);
        L::store(mask, sum, squares + chosen);
        L::store_ids(mask, points.ids + i, ids + chosen);
        chosen += L::count(mask);
    }
    return chosen;
}

/// Counting sort: counts for each number how many come before it. The bits of non-negative numbers have the order of
/// the numbers.
template <class T>
void sort(const T* squares, const std::int32_t* ids, std::int64_t count, T* sorted_squares, std::int32_t* sorted_ids)
{
    constexpr int width = kWidest<double>, together = 4;
    typedef std::int64_t Vector __attribute__((vector_size(width * 8)));
    constexpr bool is_single = sizeof(T) == 4;
    alignas(64) std::int64_t keys[kMaxSorted], ties[kMaxSorted], positions[kMaxSorted];
    for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (is_single) {
            std::int32_t bits;
            __builtin_memcpy(&bits, squares + i, 4);
            keys[i] = static_cast<std::int64_t>(bits) << 32 | ids[i];
        } else {
            __builtin_memcpy(keys + i, squares + i, 8);
            ties[i] = ids[i];
        }
    }
    for (auto i = count; i % (width * together) != 0; ++i) keys[i] = ties[i] = 0;
    for (std::int64_t begin = 0; begin < count; begin += width * together) {
        Vector own[together], own_ties[together], before[together]{};
        for (int v = 0; v < together; ++v) {
            own[v] = *reinterpret_cast<const Vector*>(keys + begin + v * width);
            if constexpr (!is_single) own_ties[v] = *reinterpret_cast<const Vector*>(ties + begin + v * width);
        }
        for (std::int64_t i = 0; i < count; ++i) {
            for (int v = 0; v < together; ++v) {
                if constexpr (is_single)
                    before[v] -= own[v] > keys[i];
                else
                    before[v] -= (own[v] > keys[i]) | ((own[v] == keys[i]) & (own_ties[v] > ties[i]));
            }
        }
        for (int v = 0; v < together; ++v) *reinterpret_cast<Vector*>(positions + begin + v * width) = before[v];
    }
    for (std::int64_t i = 0; i < count; ++i) {
        sorted_squares[positions[i]] = squares[i];
        sorted_ids[positions[i]] = ids[i];
    }
}

template <class T>
void roots(const T* squares, std::int64_t count, T* to)
{
    for (std::int64_t i = 0; i < count; ++i) {
        if constexpr (sizeof(T) == 4)
            to[i] = __builtin_sqrtf(squares[i]);
        else
            to[i] = __builtin_sqrt(squares[i]);
    }
}

template <class T>
std::int64_t count_up_to(const T* squares, std::int64_t count, T bound)
{
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += squares[i] <= bound;
    return sum;
}

template <class V>
inline void copy_numbers(const V* from, std::int64_t count, V* to)
{
    constexpr int width = 16 / sizeof(V);
    typedef V Vector __attribute__((vector_size(width * sizeof(V)), aligned(sizeof(V)), may_alias));
    if (count < width) {  // fewer than a vector
        for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
        return;
    }
    // Copies whole blocks; the last one ends where the numbers do and overlaps the block before.
    for (std::int64_t i = 0; i + width < count; i += width)
        *reinterpret_cast<Vector*>(to + i) = *reinterpret_cast<const Vector*>(from + i);
    *reinterpret_cast<Vector*>(to + count - width) = *reinterpret_cast<const Vector*>(from + count - width);
}

template <class T>
void copy(const std::int32_t* ids, const T* distances, std::int64_t count, std::int32_t* to_ids, T* to_distances)
{
    copy_numbers(ids, count, to_ids);
    copy_numbers(distances, count, to_distances);
}

template <class T>
constexpr PointKernels<T> kernels_here()
{
    return {{{gather<T, 1, false>, gather<T, 1, true>},
             {gather<T, 2, false>, gather<T, 2, true>},
             {gather<T, 3, false>, gather<T, 3, true>}},
            {{filter<T, 1, false>, filter<T, 1, true>},
             {filter<T, 2, false>, filter<T, 2, true>},
             {filter<T, 3, false>, filter<T, 3, true>}},
            sort<T>,
            roots<T>,
            count_up_to<T>,
            copy<T>};
}

}  // namespace
}  // namespace meshard
