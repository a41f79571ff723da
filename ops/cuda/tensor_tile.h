// SPDX-License-Identifier: Apache-2.0
// Operations of one warp on fragments of 16 x 16 numbers, with two implementations: for the tensor cores of a GPU, and
// for a host.
//
// Kernels (slice_tiles.h) use only this interface, so that tests run their source on a machine without a GPU. There a
// warp is one call with one lane, and a fragment is a plain 16 x 16 array.
//
//   Acc   16 x 16 fp32, `v[kRows][kCols]`: the part that this thread owns. On the GPU a thread owns 2 rows and 4
//         columns, on the host all 16 and 16; row(i) and col(j) return which.
//   A     16 x 16 left factor,  load_a(m): from memory as [row][k]; to_a(acc): from an accumulator, without memory
//   B     16 x 16 right factor, load_b(m): from memory as [column][k], used with load_a;
//                               load_b_rows(m): from memory as [k][column], used with to_a
//   mma   acc += a * b
//
// In fp32 load_a and load_b also take numbers that are `step` apart along k.
//
// to_a and load_b_rows may both permute k (tf32 does): a product needs load_a with load_b, or to_a with load_b_rows.
#pragma once

#include "ops/cuda/tile_block.h"
#include "ops/cuda/tile_math.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace meshard::tiles {

struct Bfloat16 {
    std::uint16_t bits;
};

struct Float16 {
    std::uint16_t bits;
};

/// The type in which points are stored.
template <TileMath M>
struct Storage {
    using type = float;
};
template <>
struct Storage<TileMath::Bfloat16> {
    using type = Bfloat16;
};
template <>
struct Storage<TileMath::Float16> {
    using type = Float16;
};

/// Stores a number, rounded to nearest even.
TILE_FN void assign(float& to, float from)
{
    to = from;
}

TILE_FN float to_float(float x)
{
    return x;
}

#ifdef __CUDACC__

/// Packs two numbers into one register, the first in its lower half.
TILE_FN std::uint32_t packed(Bfloat16, float low, float high)
{
    std::uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

TILE_FN std::uint32_t packed(Float16, float low, float high)
{
    std::uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

TILE_FN void assign(Bfloat16& to, float from)
{
    to.bits = static_cast<std::uint16_t>(packed(to, from, 0.0f));
}

TILE_FN void assign(Float16& to, float from)
{
    to.bits = static_cast<std::uint16_t>(packed(to, from, 0.0f));
}

TILE_FN float to_float(Bfloat16 x)
{
    return __uint_as_float(std::uint32_t{x.bits} << 16);
}

TILE_FN float to_float(Float16 x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

TILE_FN std::uint32_t tf32(float x)
{
    std::uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

/// The rounding error of a number when a product uses it.
template <TileMath M>
TILE_FN float lost_by_rounding(float x)
{
    if (M == TileMath::Float32) return 0;
    if (M == TileMath::Tf32) return x - __uint_as_float(tf32(x));
    typename Storage<M>::type stored;
    assign(stored, x);
    return x - to_float(stored);
}

TILE_FN float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

TILE_FN float log_2(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// What both precisions share: ownership of elements, sums over the tile, copies.
struct WarpLanes {
    static constexpr int kRows = 2, kCols = 4;
    struct Acc {
        float v[kRows][kCols];
    };
    int lane;

    TILE_FN int row(int i) const { return lane / 4 + 8 * i; }
    TILE_FN int col(int j) const { return (j / 2) * 8 + (lane % 4) * 2 + j % 2; }

    /// Sums over the threads that own parts of the same row, after each has added its own columns.
    TILE_FN void sum_over_cols(float (&rows)[kRows]) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            rows[i] += __shfl_xor_sync(~0u, rows[i], 1);
            rows[i] += __shfl_xor_sync(~0u, rows[i], 2);
        }
    }
    TILE_FN void max_over_cols(float (&rows)[kRows]) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            rows[i] = fmaxf(rows[i], __shfl_xor_sync(~0u, rows[i], 1));
            rows[i] = fmaxf(rows[i], __shfl_xor_sync(~0u, rows[i], 2));
        }
    }
    TILE_FN void sum_over_rows(float (&cols)[kCols]) const
    {
        TILE_UNROLL
        for (int mask = 4; mask <= 16; mask *= 2) {
            TILE_UNROLL
            for (int j = 0; j < kCols; ++j) cols[j] += __shfl_xor_sync(~0u, cols[j], mask);
        }
    }
    TILE_FN void max_over_rows(float (&cols)[kCols]) const
    {
        TILE_UNROLL
        for (int mask = 4; mask <= 16; mask *= 2) {
            TILE_UNROLL
            for (int j = 0; j < kCols; ++j) cols[j] = fmaxf(cols[j], __shfl_xor_sync(~0u, cols[j], mask));
        }
    }

    /// Loads 16 numbers, one for each column (row); each thread gets those that it owns.
    TILE_FN void load_cols(float (&v)[kCols], const float* from) const
    {
        TILE_UNROLL
        for (int half = 0; half < 2; ++half) {
            const float2 pair = *reinterpret_cast<const float2*>(from + half * 8 + (lane % 4) * 2);
            v[half * 2] = pair.x;
            v[half * 2 + 1] = pair.y;
        }
    }
    TILE_FN void load_rows(float (&v)[kRows], const float* from) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) v[i] = from[row(i)];
    }
    TILE_FN void store_cols(float* to, const float (&v)[kCols]) const
    {
        if (lane < 4) {
            TILE_UNROLL
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(to + half * 8 + lane * 2) = make_float2(v[half * 2], v[half * 2 + 1]);
        }
    }
    TILE_FN void store_rows(float* to, const float (&v)[kRows]) const
    {
        if (lane % 4 == 0) {
            TILE_UNROLL
            for (int i = 0; i < kRows; ++i) to[row(i)] = v[i];
        }
    }
    /// Whether this thread stores the results of its rows (columns) after a sum over columns (rows).
    TILE_FN bool owns_rows() const { return lane % 4 == 0; }
    TILE_FN bool owns_cols() const { return lane < 4; }
    /// Whether a thread of the warp says so.
    TILE_FN bool any(bool x) const { return __any_sync(~0u, x); }

    /// Starts to copy 16 rows of `D` numbers from global to shared memory; rows from `rows` on and channels from
    /// `channels` on become zero. Team 2: copies rows of two neighbouring heads, `between` numbers apart in shared
    /// memory; this warp copies the rows from 8 * member on.
    template <int D, int LD, int Team, class T>
    TILE_FN void copy_rows_async(T* to, int between, const T* from, std::int64_t stride, int rows, int channels,
                                 int member) const
    {
        constexpr int kPiece = 16 / sizeof(T), kPieces = D / kPiece;
        TILE_UNROLL
        for (int i = 0; i < (16 * kPieces + 31) / 32; ++i) {
            const int piece = i * 32 + lane, r = piece / (kPieces * Team) + member * 8, m = piece / kPieces % Team,
                      d = piece % kPieces * kPiece;
            if (16 * kPieces % 32 == 0 || piece < 16 * kPieces) {
                const bool there = r < rows && d < channels;
                const auto address =
                    static_cast<std::uint32_t>(__cvta_generic_to_shared(to + m * between + r * LD + d));
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
                             "l"(there ? from + r * stride + m * channels + d : from), "r"(there ? 16 : 0)
                             : "memory");
            }
        }
    }
    TILE_FN void copy_16_async(float* to, const float* from) const
    {
        if (lane < 4) {
            const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to + lane * 4));
            asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + lane * 4) : "memory");
        }
    }
    TILE_FN void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
    template <int Pending>
    TILE_FN void wait() const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
    }
    TILE_FN void sync() const { __syncwarp(); }
    /// Forces later code to read memory again.
    TILE_FN void forget() const { asm volatile("" ::: "memory"); }

    /// Copies 16 rows of `D` numbers from shared to global memory.
    template <int D, int LD, class T>
    TILE_FN void copy_rows_out(T* to, std::int64_t stride, const T* from, int rows, int channels) const
    {
        constexpr int kPiece = 16 / sizeof(T), kPieces = D / kPiece;
        TILE_UNROLL
        for (int i = 0; i < (16 * kPieces + 31) / 32; ++i) {
            const int piece = i * 32 + lane, r = piece / kPieces, d = piece % kPieces * kPiece;
            if (r < rows && d < channels)
                *reinterpret_cast<uint4*>(to + r * stride + d) = *reinterpret_cast<const uint4*>(from + r * LD + d);
        }
    }
};

template <TileMath M>
struct Tile : WarpLanes {  // fp32 in memory and in the fragments
    using T = float;
    static constexpr bool kTransposes = false;
    static constexpr int kHeld = M == TileMath::Float32 ? 64 : 128;  // channels of left factors that fit the registers
    // From Blackwell on the compiler keeps more loads in flight than the registers hold, unless it is kept from it.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    static constexpr bool kLoadsInPlace = M == TileMath::Float32;
#else
    static constexpr bool kLoadsInPlace = false;
#endif
    struct A {
        float v[2][4];  // [k / 8]
    };
    struct B {
        float v[2][2][2];  // [k / 8][column / 8]
    };

    TILE_FN A load_a(const T* from, int ld, int step = 1) const
    {
        A a;
        const int g = lane / 4, c = lane % 4;
        TILE_UNROLL
        for (int t = 0; t < 2; ++t) {
            TILE_UNROLL
            for (int i = 0; i < 4; ++i) a.v[t][i] = from[(g + 8 * (i % 2)) * ld + (8 * t + c + 4 * (i / 2)) * step];
        }
        return a;
    }
    TILE_FN A to_a(const Acc& acc) const
    {
        A a;
        TILE_UNROLL
        for (int t = 0; t < 2; ++t) {
            TILE_UNROLL
            for (int i = 0; i < 4; ++i)
                a.v[t][i] = acc.v[i % 2][2 * t + i / 2];  // k = c is column 2c, k = c + 4 is column 2c + 1
        }
        return a;
    }
    TILE_FN B load_b(const T* from, int ld, int step = 1) const
    {
        B b;
        const int g = lane / 4, c = lane % 4;
        TILE_UNROLL
        for (int i = 0; i < 8; ++i)
            b.v[i / 4][i / 2 % 2][i % 2] = from[(g + 8 * (i / 2 % 2)) * ld + (8 * (i / 4) + c + 4 * (i % 2)) * step];
        return b;
    }
    TILE_FN B load_b_rows(const T* from, int ld) const
    {
        B b;
        const int g = lane / 4, c = lane % 4;
        TILE_UNROLL
        for (int i = 0; i < 8; ++i)
            b.v[i / 4][i / 2 % 2][i % 2] = from[(8 * (i / 4) + 2 * c + i % 2) * ld + g + 8 * (i / 2 % 2)];
        return b;
    }
    TILE_FN static void multiply(float (&c)[kRows][kCols], int half, const std::uint32_t (&a)[4],
                                 const std::uint32_t (&b)[2])
    {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0][2 * half]), "+f"(c[0][2 * half + 1]), "+f"(c[1][2 * half]), "+f"(c[1][2 * half + 1])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    TILE_FN void mma(Acc& acc, const A& a, const B& b) const
    {
        TILE_UNROLL
        for (int t = 0; t < 2; ++t) {
            std::uint32_t high[4], low[4];
            TILE_UNROLL
            for (int i = 0; i < 4; ++i) {
                high[i] = tf32(a.v[t][i]);
                if (M == TileMath::Float32) low[i] = tf32(a.v[t][i] - __uint_as_float(high[i]));
            }
            TILE_UNROLL
            for (int half = 0; half < 2; ++half) {
                std::uint32_t b_high[2], b_low[2];
                TILE_UNROLL
                for (int i = 0; i < 2; ++i) {
                    b_high[i] = tf32(b.v[t][half][i]);
                    if (M == TileMath::Float32) b_low[i] = tf32(b.v[t][half][i] - __uint_as_float(b_high[i]));
                }
                if (M == TileMath::Float32) {
                    multiply(acc.v, half, high, b_low);
                    multiply(acc.v, half, low, b_high);
                }
                multiply(acc.v, half, high, b_high);
            }
        }
    }
    /// `mma` to a sum over many points. Tensor cores cut sums off instead of rounding them, by up to a unit in the last
    /// place each, all in one direction: in Float32 each product is added by an addition that rounds.
    TILE_FN void mma_to_sum(Acc& sum, const A& a, const B& b) const
    {
        if (M != TileMath::Float32) return mma(sum, a, b);
        Acc product = {};
        mma(product, a, b);
        TILE_UNROLL
        for (int r = 0; r < kRows; ++r) {
            TILE_UNROLL
            for (int c = 0; c < kCols; ++c) sum.v[r][c] += product.v[r][c];
        }
    }
    TILE_FN A transposed(const A& a) const { return a; }  // not supported
    /// Stores an accumulator times a factor as rows of global memory, of which `rows` and `channels` exist.
    TILE_FN void store_out(T* to, std::int64_t stride, const Acc& acc, float factor, int rows, int channels) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            TILE_UNROLL
            for (int half = 0; half < 2; ++half) {
                if (row(i) < rows && col(2 * half) < channels)
                    *reinterpret_cast<float2*>(to + row(i) * stride + col(2 * half)) =
                        make_float2(acc.v[i][2 * half] * factor, acc.v[i][2 * half + 1] * factor);
            }
        }
    }
    /// Stores an accumulator times a factor as 16 rows.
    TILE_FN void store(T* to, int ld, const Acc& acc, float factor) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            TILE_UNROLL
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(to + row(i) * ld + col(2 * half)) =
                    make_float2(acc.v[i][2 * half] * factor, acc.v[i][2 * half + 1] * factor);
        }
    }
};

/// Fragments of 16-bit numbers.
template <TileMath M>
struct HalfTile : WarpLanes {
    using T = typename Storage<M>::type;
    static constexpr bool kTransposes = true;
    static constexpr int kHeld = 192;
    static constexpr bool kLoadsInPlace = false;
    struct A {
        std::uint32_t v[4];
    };
    struct B {
        std::uint32_t v[4];  // two registers for columns 0 to 7, two for 8 to 15
    };

    template <bool Transposed>
    TILE_FN static void load_4(std::uint32_t (&v)[4], const T* from)
    {
        const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(from));
        if (Transposed)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "r"(address)
                         : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "r"(address)
                         : "memory");
    }
    TILE_FN A load_a(const T* from, int ld) const
    {
        A a;
        load_4<false>(a.v, from + (lane % 16) * ld + lane / 16 * 8);
        return a;
    }
    TILE_FN A to_a(const Acc& acc) const
    {
        return {{packed(T(), acc.v[0][0], acc.v[0][1]), packed(T(), acc.v[1][0], acc.v[1][1]),
                 packed(T(), acc.v[0][2], acc.v[0][3]), packed(T(), acc.v[1][2], acc.v[1][3])}};
    }
    TILE_FN B load_b(const T* from, int ld) const
    {
        B b;
        load_4<false>(b.v, from + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8);
        return b;
    }
    TILE_FN B load_b_rows(const T* from, int ld) const
    {
        B b;
        load_4<true>(b.v, from + (lane % 16) * ld + lane / 16 * 8);
        return b;
    }
    TILE_FN void mma(Acc& acc, const A& a, const B& b) const
    {
        TILE_UNROLL
        for (int half = 0; half < 2; ++half) {
            if (M == TileMath::Bfloat16)
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
                    : "+f"(acc.v[0][2 * half]), "+f"(acc.v[0][2 * half + 1]), "+f"(acc.v[1][2 * half]),
                      "+f"(acc.v[1][2 * half + 1])
                    : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[2 * half]), "r"(b.v[2 * half + 1]));
            else
                asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
                    : "+f"(acc.v[0][2 * half]), "+f"(acc.v[0][2 * half + 1]), "+f"(acc.v[1][2 * half]),
                      "+f"(acc.v[1][2 * half + 1])
                    : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[2 * half]), "r"(b.v[2 * half + 1]));
        }
    }
    TILE_FN void mma_to_sum(Acc& sum, const A& a, const B& b) const { mma(sum, a, b); }
    TILE_FN static std::uint32_t transposed_8(std::uint32_t m)
    {
        std::uint32_t t;
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(m));
        return t;
    }
    TILE_FN A transposed(const A& a) const
    {
        return {{transposed_8(a.v[0]), transposed_8(a.v[2]), transposed_8(a.v[1]), transposed_8(a.v[3])}};
    }
    TILE_FN void store(T* to, int ld, const Acc& acc, float factor) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            TILE_UNROLL
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<std::uint32_t*>(to + row(i) * ld + col(2 * half)) =
                    packed(T(), acc.v[i][2 * half] * factor, acc.v[i][2 * half + 1] * factor);
        }
    }
    TILE_FN void store_out(T* to, std::int64_t stride, const Acc& acc, float factor, int rows, int channels) const
    {
        TILE_UNROLL
        for (int i = 0; i < kRows; ++i) {
            TILE_UNROLL
            for (int half = 0; half < 2; ++half) {
                if (row(i) < rows && col(2 * half) < channels)
                    *reinterpret_cast<std::uint32_t*>(to + row(i) * stride + col(2 * half)) =
                        packed(T(), acc.v[i][2 * half] * factor, acc.v[i][2 * half + 1] * factor);
            }
        }
    }
};

template <>
struct Tile<TileMath::Bfloat16> : HalfTile<TileMath::Bfloat16> {};
template <>
struct Tile<TileMath::Float16> : HalfTile<TileMath::Float16> {};

#else  // host

inline float to_float(Bfloat16 x)
{
    const std::uint32_t bits = std::uint32_t{x.bits} << 16;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
inline void assign(Bfloat16& to, float from)
{
    std::uint32_t bits;
    std::memcpy(&bits, &from, 4);
    to.bits = static_cast<std::uint16_t>(std::isnan(from) ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline float to_float(Float16 x)
{
    _Float16 value;
    std::memcpy(&value, &x.bits, 2);
    return value;
}
inline void assign(Float16& to, float from)
{
    const auto value = static_cast<_Float16>(from);
    std::memcpy(&to.bits, &value, 2);
}
template <TileMath M>
float lost_by_rounding(float x)
{
    typename Storage<M>::type stored;
    assign(stored, x);
    return x - to_float(stored);
}
inline float power_of_2(float x)
{
    return std::exp2(x);
}
inline float log_2(float x)
{
    return std::log2(x);
}

template <TileMath M>
struct HostTile {
    using T = typename Storage<M>::type;
    static constexpr bool kTransposes = true;
    static constexpr int kHeld = sizeof(T) == 2 ? 192 : 64;
    static constexpr bool kLoadsInPlace = false;
    static constexpr int kRows = 16, kCols = 16;
    struct Acc {
        float v[kRows][kCols];
    };
    struct A {
        float v[16][16];
    };
    struct B {
        float v[16][16];  // [k][column]
    };
    int lane = 0;

    static float stored(float x)
    {
        T t;
        assign(t, x);
        return to_float(t);
    }
    int row(int i) const { return i; }
    int col(int j) const { return j; }
    void sum_over_cols(float (&)[16]) const {}
    void max_over_cols(float (&)[16]) const {}
    void sum_over_rows(float (&)[16]) const {}
    void max_over_rows(float (&)[16]) const {}
    void load_cols(float (&v)[16], const float* from) const { std::memcpy(v, from, sizeof v); }
    void load_rows(float (&v)[16], const float* from) const { std::memcpy(v, from, sizeof v); }
    void store_cols(float* to, const float (&v)[16]) const { std::memcpy(to, v, sizeof v); }
    void store_rows(float* to, const float (&v)[16]) const { std::memcpy(to, v, sizeof v); }
    bool owns_rows() const { return true; }
    bool owns_cols() const { return true; }
    bool any(bool x) const { return x; }
    template <int D, int LD, int Team>
    void copy_rows_async(T* to, int between, const T* from, std::int64_t stride, int rows, int channels,
                         int member) const
    {
        for (int r = member * 8; r < (Team == 2 ? member * 8 + 8 : 16); ++r)
            for (int m = 0; m < Team; ++m)
                for (int d = 0; d < D; ++d) {
                    T& x = to[m * between + r * LD + d];
                    if (r < rows && d < channels)
                        x = from[r * stride + m * channels + d];
                    else
                        assign(x, 0);
                }
    }
    void copy_16_async(float* to, const float* from) const { std::memcpy(to, from, 64); }
    void commit() const {}
    template <int>
    void wait() const
    {
    }
    void sync() const {}
    void forget() const {}
    template <int D, int LD>
    void copy_rows_out(T* to, std::int64_t stride, const T* from, int rows, int channels) const
    {
        for (int r = 0; r < rows && r < 16; ++r)
            for (int d = 0; d < channels && d < D; ++d) to[r * stride + d] = from[r * LD + d];
    }
    [[gnu::noinline]] A load_a(const T* from, int ld, int step = 1) const
    {
        A a;
        for (int r = 0; r < 16; ++r)
            for (int k = 0; k < 16; ++k) a.v[r][k] = to_float(from[r * ld + k * step]);
        return a;
    }
    [[gnu::noinline]] A to_a(const Acc& acc) const
    {
        A a;
        for (int r = 0; r < 16; ++r)
            for (int k = 0; k < 16; ++k) a.v[r][k] = stored(acc.v[r][k]);
        return a;
    }
    [[gnu::noinline]] B load_b(const T* from, int ld, int step = 1) const
    {
        B b;
        for (int k = 0; k < 16; ++k)
            for (int c = 0; c < 16; ++c) b.v[k][c] = to_float(from[c * ld + k * step]);
        return b;
    }
    [[gnu::noinline]] B load_b_rows(const T* from, int ld) const
    {
        B b;
        for (int k = 0; k < 16; ++k)
            for (int c = 0; c < 16; ++c) b.v[k][c] = to_float(from[k * ld + c]);
        return b;
    }
    [[gnu::noinline]] void mma(Acc& acc, const A& a, const B& b) const
    {
        for (int r = 0; r < 16; ++r)
            for (int k = 0; k < 16; ++k)
                for (int c = 0; c < 16; ++c) acc.v[r][c] += a.v[r][k] * b.v[k][c];
    }
    void mma_to_sum(Acc& sum, const A& a, const B& b) const { mma(sum, a, b); }
    [[gnu::noinline]] A transposed(const A& a) const
    {
        A t;
        for (int r = 0; r < 16; ++r)
            for (int k = 0; k < 16; ++k) t.v[k][r] = a.v[r][k];
        return t;
    }
    [[gnu::noinline]] void store_out(T* to, std::int64_t stride, const Acc& acc, float factor, int rows,
                                     int channels) const
    {
        for (int r = 0; r < rows && r < 16; ++r)
            for (int c = 0; c < channels && c < 16; ++c) assign(to[r * stride + c], acc.v[r][c] * factor);
    }
    [[gnu::noinline]] void store(T* to, int ld, const Acc& acc, float factor) const
    {
        for (int r = 0; r < 16; ++r)
            for (int c = 0; c < 16; ++c) assign(to[r * ld + c], acc.v[r][c] * factor);
    }
};

template <TileMath M>
using Tile = HostTile<M>;

#endif

}  // namespace meshard::tiles
