// SPDX-License-Identifier: Apache-2.0
// Operations on rows of points between the products of a block: norms and gelu, forward and backward. They are bound by
// memory traffic, so each reads and writes its data once.
//
// Norms have no scale and shift here: these are folded into the next product, from whose gradients theirs follow. So
// only x_hat is stored, and backward needs no sums over points for them.
#pragma once

#include "ops/cuda/tensor_tile.h"
#include "ops/cuda/tile_block.h"

#include <cmath>
#include <cstdint>

namespace meshard::tiles {

/// The type of arithmetic on stored numbers.
template <class T>
struct Arithmetic {
    using type = float;
};
template <>
struct Arithmetic<double> {
    using type = double;
};
template <class T>
using Number = typename Arithmetic<T>::type;

TILE_FN double to_float(double x)
{
    return x;
}
TILE_FN void assign(double& to, double from)
{
    to = from;
}

/// 16 bytes of a row, converted to the type of arithmetic.
template <class T>
struct Piece {
    static constexpr int kCount = 16 / sizeof(T);
    Number<T> v[kCount];

    TILE_FN static Piece zero()
    {
        Piece piece;
        TILE_UNROLL
        for (int i = 0; i < kCount; ++i) piece.v[i] = 0;
        return piece;
    }
};

/// The same 16 bytes as they are in memory.
struct alignas(16) Raw {
    std::uint32_t words[4];
};

template <class T>
TILE_FN Raw load_raw(const T* row, std::int64_t piece)
{
#ifdef __CUDACC__
    const uint4 from = *(reinterpret_cast<const uint4*>(row) + piece);
    return {{from.x, from.y, from.z, from.w}};
#else
    Raw raw;
    std::memcpy(&raw, row + piece * Piece<T>::kCount, 16);
    return raw;
#endif
}

template <class T>
TILE_FN Piece<T> unpack(const Raw& raw)
{
    T stored[Piece<T>::kCount];
    memcpy(stored, &raw, 16);
    Piece<T> piece;
    TILE_UNROLL
    for (int i = 0; i < Piece<T>::kCount; ++i) piece.v[i] = to_float(stored[i]);
    return piece;
}

template <class T>
TILE_FN Piece<T> load_piece(const T* row, std::int64_t piece, bool there)
{
    return there && row ? unpack<T>(load_raw(row, piece)) : Piece<T>::zero();
}

template <class T>
TILE_FN void store_piece(T* row, std::int64_t at, const Piece<T>& piece)
{
    T stored[Piece<T>::kCount];
    TILE_UNROLL
    for (int i = 0; i < Piece<T>::kCount; ++i) assign(stored[i], piece.v[i]);
#ifdef __CUDACC__
    uint4 to;
    memcpy(&to, stored, 16);
    *(reinterpret_cast<uint4*>(row) + at) = to;
#else
    std::memcpy(row + at * Piece<T>::kCount, stored, 16);
#endif
}

TILE_FN float inverse_root(float x)
{
#ifdef __CUDACC__
    return rsqrtf(x);
#else
    return 1 / std::sqrt(x);
#endif
}
TILE_FN double inverse_root(double x)
{
    return 1 / sqrt(x);
}

/// Normalises rows, one warp for each row. V > 0: rows of at most 32 V whole pieces of 16 bytes, kept in registers. V
/// == 0: rows of any length, read again for each step.
template <class T, int V>
struct NormalizeRows {
    static constexpr int kPieces = V * 32 / Block::kLanes, kCount = Piece<T>::kCount;
    const T *x, *add;
    const Number<T>*bias, *after;
    T *sum, *x_hat;
    Number<T>* scales;
    std::int64_t rows;
    int channels;
    double epsilon;

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t step = static_cast<std::int64_t>(block.parts) * block.warps,
                           first = static_cast<std::int64_t>(block.part) * block.warps + block.warp;
        if constexpr (V == 0)
            for (std::int64_t row = first; row < rows; row += step) any_row(block, row);
        else
            pieces(block, first, step);
    }

private:
    TILE_FN Number<T> value(std::int64_t row, int c) const
    {
        const std::int64_t at = row * channels + c;
        return to_float(x[at]) + (add ? to_float(add[at]) : 0) + (bias ? bias[c] : 0);
    }

    TILE_FN void any_row(const Block& block, std::int64_t row) const
    {
        Number<T> total = 0, squares = 0;
        for (int c = block.lane; c < channels; c += Block::kLanes) total += value(row, c);
        const Number<T> mean = block.sum(total) / channels;
        for (int c = block.lane; c < channels; c += Block::kLanes)
            squares += (value(row, c) - mean) * (value(row, c) - mean);
        const Number<T> scale = inverse_root(block.sum(squares) / channels + static_cast<Number<T>>(epsilon));
        for (int c = block.lane; c < channels; c += Block::kLanes) {
            const auto found = value(row, c);
            if (sum) assign(sum[row * channels + c], found + (after ? after[c] : 0));
            assign(x_hat[row * channels + c], (found - mean) * scale);
        }
        if (block.lane == 0 && scales) scales[row] = scale;
    }

    TILE_FN void pieces(const Block& block, std::int64_t begin, std::int64_t step) const
    {
        const int per_row = channels / kCount;
        const Number<T> inverse = Number<T>(1) / channels;
        for (std::int64_t first = begin; first < rows; first += 2 * step) {
            Raw loaded[2][kPieces], added[2][kPieces];  // two rows are being loaded at once
            TILE_UNROLL
            for (int u = 0; u < 2; ++u) {
                TILE_UNROLL
                for (int v = 0; v < kPieces; ++v) {
                    const int piece = v * Block::kLanes + block.lane;
                    const bool there = first + u * step < rows && piece < per_row;
                    loaded[u][v] = there ? load_raw(x + (first + u * step) * channels, piece) : Raw{};
                    if (add) added[u][v] = there ? load_raw(add + (first + u * step) * channels, piece) : Raw{};
                }
            }
            TILE_UNROLL
            for (int u = 0; u < 2; ++u) {
                const std::int64_t row = first + u * step;
                if (row >= rows) break;
                Piece<T> values[kPieces];
                Number<T> total = 0;
                TILE_UNROLL
                for (int v = 0; v < kPieces; ++v) {
                    const int piece = v * Block::kLanes + block.lane;
                    values[v] = unpack<T>(loaded[u][v]);
                    if (add) {
                        const auto other = unpack<T>(added[u][v]);
                        TILE_UNROLL
                        for (int i = 0; i < kCount; ++i) values[v].v[i] += other.v[i];
                    }
                    if (bias && piece < per_row) {
                        TILE_UNROLL
                        for (int i = 0; i < kCount; ++i) values[v].v[i] += bias[piece * kCount + i];
                    }
                    TILE_UNROLL
                    for (int i = 0; i < kCount; ++i) total += values[v].v[i];
                    if (sum && piece < per_row) {
                        auto stored = values[v];
                        TILE_UNROLL
                        for (int i = 0; i < kCount; ++i) stored.v[i] += after ? after[piece * kCount + i] : 0;
                        store_piece(sum + row * channels, piece, stored);
                    }
                }
                const Number<T> mean = block.sum(total) * inverse;
                Number<T> squares = 0;
                TILE_UNROLL
                for (int v = 0; v < kPieces; ++v) {
                    TILE_UNROLL
                    for (int i = 0; i < kCount; ++i) {
                        values[v].v[i] = v * Block::kLanes + block.lane < per_row ? values[v].v[i] - mean : 0;
                        squares += values[v].v[i] * values[v].v[i];
                    }
                }
                const Number<T> scale = inverse_root(block.sum(squares) * inverse + static_cast<Number<T>>(epsilon));
                TILE_UNROLL
                for (int v = 0; v < kPieces; ++v) {
                    TILE_UNROLL
                    for (int i = 0; i < kCount; ++i) values[v].v[i] *= scale;
                    if (v * Block::kLanes + block.lane < per_row)
                        store_piece(x_hat + row * channels, v * Block::kLanes + block.lane, values[v]);
                }
                if (block.lane == 0 && scales) scales[row] = scale;
            }
        }
    }
};

/// Adds the warps' sums of channels in order, in shared memory of warps * lanes * kCount numbers, and stores them as
/// the block's part (parts, channels).
template <class T, int Pieces>
TILE_FN void store_channel_sums(const Block& block, const Piece<T> (&sums)[Pieces], int channels, Number<T>* parts)
{
    constexpr int kCount = Piece<T>::kCount, kWidth = Block::kLanes * kCount;
    auto* shared = reinterpret_cast<Number<T>*>(block.shared);
    TILE_UNROLL
    for (int v = 0; v < Pieces; ++v) {
        block.sync();
        TILE_UNROLL
        for (int i = 0; i < kCount; ++i) shared[block.warp * kWidth + block.lane * kCount + i] = sums[v].v[i];
        block.sync();
        block.each(kWidth, [&](int c) {
            Number<T> sum = 0;
            for (int w = 0; w < block.warps; ++w) sum += shared[w * kWidth + c];
            const int channel = v * kWidth + c;
            if (channel < channels) parts[static_cast<std::int64_t>(block.part) * channels + channel] = sum;
        });
    }
}

/// Backward of NormalizeRows, with the same V; V == 0 leaves the sums to SumRows.
template <class T, int V>
struct NormalizeRowsBackward {
    static constexpr int kPieces = V * 32 / Block::kLanes, kCount = Piece<T>::kCount;
    const T *gradient, *x_hat;
    const Number<T>* scales;
    const T* before;
    T* result;
    Number<T>*before_parts, *result_parts;  ///< null: not computed
    std::int64_t rows;
    int channels;

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t step = static_cast<std::int64_t>(block.parts) * block.warps,
                           first = static_cast<std::int64_t>(block.part) * block.warps + block.warp;
        if constexpr (V == 0)
            for (std::int64_t row = first; row < rows; row += step) any_row(block, row);
        else
            pieces(block, first, step);
    }

private:
    TILE_FN void any_row(const Block& block, std::int64_t row) const
    {
        Number<T> total = 0, product = 0;
        for (int c = block.lane; c < channels; c += Block::kLanes) {
            total += to_float(gradient[row * channels + c]);
            product += to_float(gradient[row * channels + c]) * to_float(x_hat[row * channels + c]);
        }
        const Number<T> mean = block.sum(total) / channels, slope = block.sum(product) / channels;
        for (int c = block.lane; c < channels; c += Block::kLanes) {
            const std::int64_t at = row * channels + c;
            assign(result[at], (before ? to_float(before[at]) : 0) +
                                   scales[row] * (to_float(gradient[at]) - mean - to_float(x_hat[at]) * slope));
        }
    }

    TILE_FN void pieces(const Block& block, std::int64_t begin, std::int64_t step) const
    {
        const int per_row = channels / kCount;
        const Number<T> inverse = Number<T>(1) / channels;
        Piece<T> before_sums[kPieces], result_sums[kPieces];
        TILE_UNROLL
        for (int v = 0; v < kPieces; ++v) before_sums[v] = result_sums[v] = Piece<T>::zero();
#ifdef __CUDACC__
#pragma unroll 2
#endif
        for (std::int64_t row = begin; row < rows; row += step) {
            Piece<T> g[kPieces], hat[kPieces], found[kPieces];
            Number<T> total = 0, product = 0;
            TILE_UNROLL
            for (int v = 0; v < kPieces; ++v) {
                const int piece = v * Block::kLanes + block.lane;
                g[v] = load_piece(gradient + row * channels, piece, piece < per_row);
                hat[v] = load_piece(x_hat + row * channels, piece, piece < per_row);
                found[v] = before ? load_piece(before + row * channels, piece, piece < per_row) : Piece<T>::zero();
                TILE_UNROLL
                for (int i = 0; i < kCount; ++i) {
                    total += g[v].v[i];
                    product += g[v].v[i] * hat[v].v[i];
                }
            }
            const Number<T> scale = scales[row], mean = block.sum(total) * inverse,
                            slope = block.sum(product) * inverse;
            TILE_UNROLL
            for (int v = 0; v < kPieces; ++v) {
                const int piece = v * Block::kLanes + block.lane;
                TILE_UNROLL
                for (int i = 0; i < kCount; ++i) {
                    before_sums[v].v[i] += found[v].v[i];
                    found[v].v[i] += scale * (g[v].v[i] - mean - hat[v].v[i] * slope);
                    result_sums[v].v[i] += found[v].v[i];
                }
                if (piece < per_row) store_piece(result + row * channels, piece, found[v]);
            }
        }
        if (before_parts) store_channel_sums<T, kPieces>(block, before_sums, channels, before_parts);
        if (result_parts) store_channel_sums<T, kPieces>(block, result_sums, channels, result_parts);
    }
};

/// The probability that a standard normal number is below x, and its density there. In half precision erf is computed
/// by Abramowitz and Stegun 7.1.26 (error 1.5e-7), whose exponential is also that of the density.
template <bool Exact>
TILE_FN void normal_distribution(float x, float& probability, float& density)
{
    if (Exact) {
        probability = 0.5f * erfcf(-0.70710678f * x);
        density = 0.39894228f * expf(-0.5f * x * x);
        return;
    }
#ifdef __CUDACC__
    const float z = fabsf(x) * 0.70710678f, t = __fdividef(1.0f, fmaf(0.3275911f, z, 1.0f)),
                e = power_of_2(-0.72134752f * x * x);
#else
    const float z = std::fabs(x) * 0.70710678f, t = 1.0f / std::fmaf(0.3275911f, z, 1.0f),
                e = power_of_2(-0.72134752f * x * x);
#endif
    const float tail =
        0.5f * e * t *
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
    probability = x < 0 ? tail : 1 - tail;
    density = 0.39894228f * e;
}
template <bool>
TILE_FN void normal_distribution(double x, double& probability, double& density)
{
    probability = 0.5 * erfc(-0.70710678118654752 * x);
    density = 0.39894228040143268 * exp(-0.5 * x * x);
}

template <class T>
struct GeluRows {
    static constexpr int kCount = Piece<T>::kCount;
    const T* x;
    T* y;
    std::int64_t count;  // number of values

    TILE_FN static Number<T> gelu(Number<T> x)
    {
        Number<T> probability, density;
        normal_distribution<(sizeof(T) > 2)>(x, probability, density);
        return x * probability;
    }

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t threads = block.warps * Block::kLanes, thread = block.warp * Block::kLanes + block.lane,
                           step = block.parts * threads, whole = count / kCount;
#ifdef __CUDACC__
#pragma unroll 2
#endif
        for (std::int64_t i = block.part * threads + thread; i < whole; i += step) {
            auto piece = unpack<T>(load_raw(x, i));
            TILE_UNROLL
            for (int k = 0; k < kCount; ++k) piece.v[k] = gelu(piece.v[k]);
            store_piece(y, i, piece);
        }
        if (block.part == 0)
            for (std::int64_t i = whole * kCount + thread; i < count; i += threads) assign(y[i], gelu(to_float(x[i])));
    }
};

/// Backward of gelu. A thread takes the same piece of each of its rows; a block takes `stripe` neighbouring pieces, its
/// chunk of the channels. Also computes sums of the gradient over the block's rows: (parts, channels).
template <class T>
struct GeluRowsBackward {
    static constexpr int kCount = Piece<T>::kCount;
    const T* x;
    T *gradient, *y;
    Number<T>* parts;
    std::int64_t rows;
    int channels, stripe;

    TILE_FN void operator()(const Block& block) const
    {
        const int thread = block.warp * Block::kLanes + block.lane, abreast = block.warps * Block::kLanes / stripe,
                  per_row = channels / kCount;
        const int piece = block.chunk * stripe + thread % stripe, line = thread / stripe;
        const bool works = line < abreast && piece < per_row;
        auto sums = Piece<T>::zero();
        const std::int64_t step = static_cast<std::int64_t>(block.parts) * abreast;
        for (std::int64_t first = static_cast<std::int64_t>(block.part) * abreast + line; works && first < rows;
             first += 2 * step) {
            Raw loaded[2], of_loaded[2];  // two pieces are being loaded at once
            TILE_UNROLL
            for (int u = 0; u < 2; ++u) {
                const bool there = first + u * step < rows;
                loaded[u] = there ? load_raw(x + (first + u * step) * channels, piece) : Raw{};
                of_loaded[u] = there ? load_raw(gradient + (first + u * step) * channels, piece) : Raw{};
            }
            TILE_UNROLL
            for (int u = 0; u < 2; ++u) {
                const std::int64_t row = first + u * step;
                if (row >= rows) break;
                auto values = unpack<T>(loaded[u]), of = unpack<T>(of_loaded[u]);
                TILE_UNROLL
                for (int k = 0; k < kCount; ++k) {
                    Number<T> probability, density;
                    normal_distribution<(sizeof(T) > 2)>(values.v[k], probability, density);
                    of.v[k] *= values.v[k] * density + probability;
                    sums.v[k] += of.v[k];
                    values.v[k] *= probability;
                }
                store_piece(gradient + row * channels, piece, of);
                if (y) store_piece(y + row * channels, piece, values);
            }
        }
        auto* shared = reinterpret_cast<Number<T>*>(block.shared);  // (abreast, stripe * kCount)
        if (line < abreast) {
            TILE_UNROLL
            for (int k = 0; k < kCount; ++k) shared[thread * kCount + k] = sums.v[k];
        }
        block.sync();
        block.each(stripe * kCount, [&](int c) {
            Number<T> sum = 0;
            for (int r = 0; r < abreast; ++r) sum += shared[r * stripe * kCount + c];
            const int channel = block.chunk * stripe * kCount + c;
            if (channel < channels) parts[static_cast<std::int64_t>(block.part) * channels + channel] = sum;
        });
    }
};

/// GeluRowsBackward for rows that are not whole pieces, without sums.
template <class T>
struct GeluNumbersBackward {
    const T* x;
    T *gradient, *y;
    std::int64_t count;

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t threads = block.warps * Block::kLanes, thread = block.warp * Block::kLanes + block.lane;
        for (std::int64_t i = block.part * threads + thread; i < count; i += block.parts * threads) {
            const Number<T> value = to_float(x[i]);
            Number<T> probability, density;
            normal_distribution<(sizeof(T) > 2)>(value, probability, density);
            assign(gradient[i], to_float(gradient[i]) * (value * density + probability));
            if (y) assign(y[i], value * probability);
        }
    }
};

/// Sums over the rows of each part: (parts, channels). A thread has one channel of a chunk.
template <class T>
struct SumRows {
    const T* x;
    Number<T>* parts;
    std::int64_t rows;
    int channels;

    TILE_FN void operator()(const Block& block) const
    {
        const int channel = block.chunk * block.warps * Block::kLanes + block.warp * Block::kLanes + block.lane;
        if (channel >= channels) return;
        Number<T> sum = 0;
        for (std::int64_t row = block.part; row < rows; row += block.parts)
            sum += to_float(x[row * channels + channel]);
        parts[static_cast<std::int64_t>(block.part) * channels + channel] = sum;
    }
};

/// Adds the parts in order: out[i] = sum over p of parts[p, i]. The warps of a block share the parts of its numbers;
/// each lane has one number.
template <class N>
struct AddParts {
    const N* parts;
    N* out;
    std::int64_t size;
    int count;

    TILE_FN void operator()(const Block& block) const
    {
        auto* shared = reinterpret_cast<N*>(block.shared);
        const std::int64_t at = static_cast<std::int64_t>(block.part) * Block::kLanes + block.lane;
        N sum = 0;
        if (at < size) {
#ifdef __CUDACC__
#pragma unroll 8
#endif
            for (int p = block.warp; p < count; p += block.warps) sum += parts[p * size + at];
        }
        shared[block.warp * Block::kLanes + block.lane] = sum;
        block.sync();
        if (block.warp > 0 || at >= size) return;
        for (int w = 1; w < block.warps; ++w) sum += shared[w * Block::kLanes + block.lane];
        out[at] = sum;
    }
};

/// One lane for each slice: see `round_totals`.
template <TileMath M>
struct RoundTotals {
    const float *states, *sums, *state_gradients;
    float* sums_gradient;
    std::int64_t slices;
    int head_dim;

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t at =
            (static_cast<std::int64_t>(block.part) * block.warps + block.warp) * Block::kLanes + block.lane;
        if (at >= slices) return;
        const int D = head_dim;
        float lost = 0;
        for (int d = 0; d < D; ++d)
            lost += lost_by_rounding<M>(sums_gradient[at * (D + 1) + d]) * sums[at * (D + 1) + d] +
                    lost_by_rounding<M>(states[at * D + d]) * state_gradients[at * D + d];
        sums_gradient[at * (D + 1) + D] += lost / fmaxf(sums[at * (D + 1) + D], 1e-30f);
    }
};

}  // namespace meshard::tiles
