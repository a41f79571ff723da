// SPDX-License-Identifier: Apache-2.0
// The kernels of slice attention's forward pass (slice_tiles.h).
#pragma once

#include "ops/cuda/slice_tiles.h"

namespace meshard::tiles {

/// sums[s, :] = sum over points of w[n, s] (v[n, :], 1), for SC slices. Slices are rows. Also computes log_sums
/// (FindLogSums: all slices in one chunk), or reads them. In forward v is the features, in backward, for the gradient
/// of the states, the gradient of the result.
/// Latents: means over points by weights a, and logarithms of the sums of exponentials; log_sums are not read.
template <class Tile, int D, int SC, bool FindLogSums, bool Warm, bool Latents = false>
struct SliceSums {
    using T = typename Tile::T;
    static constexpr bool kReadsLogSums = !FindLogSums && !Latents;
    // Where registers are short: loads of each block or step stay behind a synchronisation, and the bias is read anew
    // for each group of points.
    static constexpr bool kBlocksInPlace = Tile::kLoadsInPlace && !Latents;
    static constexpr bool kStepsInPlace = kBlocksInPlace || (Latents && D > Tile::kHeld);
    static constexpr bool kBiasAgain = kBlocksInPlace || Latents;
    using Copies = Ring<T, D, 2, kReadsLogSums ? 1 : 0>;
    static constexpr bool kAnyRows = false, kPairs = false, kMeans = Latents;
    static constexpr int kTable = SC * kLine<T, D> * static_cast<int>(sizeof(T)) + SC * 4;
    TILE_BOTH static constexpr int shared_bytes(int warps, int, int team)
    {
        return shared_of_parts<D, SC>(team, team * kTable + warps * Copies::kAll);
    }

    Points<T> points;
    Rows<const T> v;
    float* parts;

    TILE_FN void operator()(const Tile& tile, const Block& block) const
    {
        constexpr int kBlocks = SC / 16, kSteps = D / 16, kLineX = kLine<T, D>;
        const int h = block.head(), S = points.num_slices, dim = points.head_dim, first_slice = block.chunk * SC;
        const Copies ring(block, block.team * kTable);
        T* table = reinterpret_cast<T*>(block.shared);
        float* bias = reinterpret_cast<float*>(table + SC * kLineX);
        stage<D>(block, table, kTable, points.slices, dim, first_slice, SC, S, dim, kLog2E);
        stage_numbers(block, bias, kTable, points.bias, 1, first_slice, SC, S, kLog2E, kNever);
        block.sync();
        table += block.member() * (kTable / static_cast<int>(sizeof(T)));
        bias += block.member() * (kTable / 4);

        float slice_bias[kBlocks][Tile::kRows];
        typename Tile::Acc sums[kBlocks][kSteps];
        float totals[kBlocks][Tile::kRows], largest[kBlocks][Tile::kRows];  // largest: of logits, with Latents
        TILE_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            if (!kBiasAgain) tile.load_rows(slice_bias[b], bias + b * 16);
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) {
                totals[b][r] = 0;
                largest[b][r] = kNever;
            }
            TILE_UNROLL
            for (int k = 0; k < kSteps; ++k) clear<Tile>(sums[b][k]);
        }

        float* log_sums = points.log_sums + h * points.padded;
        for_each_group<D, 1>(
            tile, block, points.count, false,
            [&](std::int64_t n, int slot) {
                ring.copy(tile, block, slot, 0, points.x, points.x_stride, n, points.count, dim);
                ring.copy(tile, block, slot, 1, v.rows, v.stride, n, points.count, dim);
                if (kReadsLogSums) ring.copy_numbers(tile, slot, 0, log_sums + n);
            },
            [&](std::int64_t n, int slot) {
                typename Tile::Acc w[kBlocks];
                if (kBiasAgain) {
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) tile.load_rows(slice_bias[b], bias + b * 16);
                }
                each(w, [&](float& l, int b, int r, int) { l = slice_bias[b][r]; });
#ifdef __CUDACC__
#pragma unroll(kBlocksInPlace&& FindLogSums&& D <= 32 ? 1 : kSteps)
#endif
                for (int k = 0; k < kSteps; ++k) {
                    if (kStepsInPlace) tile.sync();
                    const auto x = tile.load_b(ring.array(slot, 0) + k * 16, kLineX);
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) {
                        if (kBlocksInPlace) tile.sync();
                        tile.mma(w[b], tile.load_a(table + b * 16 * kLineX + k * 16, kLineX), x);
                    }
                }
                if (Warm) {
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b)
                        scale_columns_by_temperature(tile, w[b], points, h, n, first_slice + b * 16);
                }
                float log_sum[Tile::kCols];
                if (FindLogSums) {
                    TILE_UNROLL
                    for (int c = 0; c < Tile::kCols; ++c) log_sum[c] = w[0].v[0][c];
                    each(w, [&](float& l, int, int, int c) { log_sum[c] = fmaxf(log_sum[c], l); });
                    tile.max_over_rows(log_sum);
                    float sum[Tile::kCols] = {};
                    each(w, [&](float& l, int, int, int c) {
                        const float exponential = power_of_2(l - log_sum[c]);
                        sum[c] += exponential;
                        if (!Latents) l = exponential;
                    });
                    tile.sum_over_rows(sum);
                    TILE_UNROLL
                    for (int c = 0; c < Tile::kCols; ++c) {
                        log_sum[c] += log_2(sum[c]);
                        sum[c] = n + tile.col(c) < points.count ? 1 / sum[c] : 0.0f;
                    }
                    if (!Latents) each(w, [&](float& l, int b, int r, int c) { totals[b][r] += l *= sum[c]; });
                    tile.store_cols(log_sums + n, log_sum);
                }
                if constexpr (Latents) {
                    take_exponentials(tile, w, sums, totals, largest, points.count - n);
                } else if (!FindLogSums) {
                    tile.load_cols(log_sum, ring.numbers(slot, 0));
                    if (n + 16 > points.count) {
                        TILE_UNROLL
                        for (int c = 0; c < Tile::kCols; ++c)
                            log_sum[c] = n + tile.col(c) < points.count ? log_sum[c] : -kNever;
                    }
                    each(w, [&](float& l, int b, int r, int c) { totals[b][r] += l = power_of_2(l - log_sum[c]); });
                }
                typename Tile::A left[kBlocks];
                TILE_UNROLL
                for (int b = 0; b < kBlocks; ++b) left[b] = tile.to_a(w[b]);
                TILE_UNROLL
                for (int k = 0; k < kSteps; ++k) {
                    if (kStepsInPlace) tile.sync();
                    const auto right = tile.load_b_rows(ring.array(slot, 1) + k * 16, kLineX);
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) tile.mma_to_sum(sums[b][k], left[b], right);
                }
            });
        if constexpr (Latents)
            merge_part<Tile, D, SC>(tile, block, sums, totals, largest, points.heads, S, dim, parts);
        else
            store_part<Tile, D, SC>(tile, block, sums, totals, points.heads, S, dim, parts);
    }

    /// Turns the logits of `left` points into exponentials, divided by that of `largest`, the largest logit until now
    /// less kRaised; where that has grown, sums and totals are divided, too.
    TILE_FN static void take_exponentials(const Tile& tile, typename Tile::Acc (&w)[SC / 16],
                                          typename Tile::Acc (&sums)[SC / 16][D / 16],
                                          float (&totals)[SC / 16][Tile::kRows], float (&largest)[SC / 16][Tile::kRows],
                                          std::int64_t left)
    {
        if (left < 16) {
            each(w, [&](float& l, int, int, int c) {
                if (tile.col(c) >= left) l = kNever;
            });
        }
        TILE_UNROLL
        for (int b = 0; b < SC / 16; ++b) {
            float now[Tile::kRows];
            bool grows = false;
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) {
                now[r] = largest[b][r];
                TILE_UNROLL
                for (int c = 0; c < Tile::kCols; ++c) now[r] = fmaxf(now[r], w[b].v[r][c] - kRaised<T>);
            }
            tile.max_over_cols(now);
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) grows = grows || now[r] > largest[b][r];
            if (!tile.any(grows)) continue;
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) {
                const float factor = power_of_2(largest[b][r] - now[r]);
                largest[b][r] = now[r];
                totals[b][r] *= factor;
                TILE_UNROLL
                for (int k = 0; k < D / 16; ++k) {
                    TILE_UNROLL
                    for (int c = 0; c < Tile::kCols; ++c) sums[b][k].v[r][c] *= factor;
                }
            }
        }
        each(w, [&](float& l, int b, int r, int) { totals[b][r] += l = power_of_2(l - largest[b][r]); });
    }

    template <class F>
    TILE_FN static void each(typename Tile::Acc (&w)[SC / 16], const F& f)
    {
        TILE_UNROLL
        for (int b = 0; b < SC / 16; ++b) {
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) {
                TILE_UNROLL
                for (int c = 0; c < Tile::kCols; ++c) f(w[b].v[r][c], b, r, c);
            }
        }
    }
};

/// Tables in shared memory: slices, their bias (base 2) and, with `States`, their states.
template <class Tile, int D, bool States>
struct SliceTables {
    using T = typename Tile::T;
    TILE_BOTH static constexpr int bytes(int rows)
    {
        return rows * ((States ? 2 : 1) * kLine<T, D> * static_cast<int>(sizeof(T)) + 4);
    }
    const Points<T>& points;
    const float* of_states;
    T *all, *slices, *states;
    float* bias;

    TILE_FN SliceTables(const Block& block, const Points<T>& of, const float* given)
        : points(of), of_states(given), all(reinterpret_cast<T*>(block.shared))
    {
        const int own = block.member() * bytes(points.table_rows);
        slices = all + own / static_cast<int>(sizeof(T));
        states = slices + (States ? points.table_rows * kLine<T, D> : 0);
        bias = reinterpret_cast<float*>(states + points.table_rows * kLine<T, D>);
        if (padded_slices(points.num_slices) > points.table_rows) return;
        bring(block, 0);
        block.sync();
    }
    TILE_FN void bring(const Block& block, int first) const
    {
        const int rows = points.table_rows, S = points.num_slices, dim = points.head_dim, table = bytes(rows);
        stage<D>(block, all, table, points.slices, dim, first, rows, S, dim, kLog2E);
        if (States) stage<D>(block, all + rows * kLine<T, D>, table, of_states, dim, first, rows, S, dim, 1.0f);
        stage_numbers(block, reinterpret_cast<float*>(all + (States ? 2 : 1) * rows * kLine<T, D>), table, points.bias,
                      1, first, rows, S, kLog2E, kNever);
    }
};

/// Computes log_sums only, for more slices than one chunk of SliceSums has. Points are rows.
template <class Tile, int D, bool Warm>
struct LogSums {
    using T = typename Tile::T;
    using Tables = SliceTables<Tile, D, false>;
    static constexpr int P = kGroups<T, D>;
    static constexpr bool kHold = D <= Tile::kHeld;
    using Copies = Ring<T, D, 1, 0, P>;
    static constexpr bool kAnyRows = true, kPairs = false;
    TILE_BOTH static constexpr int shared_bytes(int warps, int rows, int team)
    {
        return team * Tables::bytes(rows) + warps * Copies::kAll;
    }

    Points<T> points;

    TILE_FN void operator()(const Tile& tile, const Block& block) const
    {
        constexpr int kLineX = kLine<T, D>;
        const int h = block.head(), S = points.num_slices;
        const Copies ring(block, block.team * Tables::bytes(points.table_rows));
        const Tables tables(block, points, nullptr);
        for_each_group<D, P>(
            tile, block, points.count, padded_slices(S) > points.table_rows,
            [&](std::int64_t n, int slot) {
                ring.copy(tile, block, slot, 0, points.x, points.x_stride, n, points.count, points.head_dim);
            },
            [&](std::int64_t n, int slot) {
                const LeftRows<Tile, D, P, kHold> x(tile, ring.array(slot, 0));
                float largest[P][Tile::kRows], sum[P][Tile::kRows];
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) {
                        largest[p][r] = kNever;
                        sum[p][r] = 0;
                    }
                }
                for_each_16_slices<sizeof(T) == 2 ? 4 : 1>(block, S, points.table_rows, tables, [&](int s, int row) {
                    typename Tile::Acc l[P];
                    logits_of<Tile, D, P, kHold, Warm>(tile, l, x, tables.slices + row * kLineX, tables.bias + row,
                                                       points, h, n, s);
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        TILE_UNROLL
                        for (int r = 0; r < Tile::kRows; ++r) {
                            float now = largest[p][r];
                            TILE_UNROLL
                            for (int c = 0; c < Tile::kCols; ++c) now = fmaxf(now, l[p].v[r][c]);
                            sum[p][r] *= power_of_2(largest[p][r] - now);
                            TILE_UNROLL
                            for (int c = 0; c < Tile::kCols; ++c) sum[p][r] += power_of_2(l[p].v[r][c] - now);
                            largest[p][r] = now;
                        }
                    }
                });
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    float of_all[Tile::kRows];
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) of_all[r] = largest[p][r];
                    tile.max_over_cols(of_all);
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) sum[p][r] *= power_of_2(largest[p][r] - of_all[r]);
                    tile.sum_over_cols(sum[p]);
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) sum[p][r] = of_all[r] + log_2(sum[p][r]);
                    tile.store_rows(points.log_sums + h * points.padded + n + 16 * p, sum[p]);
                }
            });
    }
};

/// y[n, :] = sum over slices of w[n, s] states[s, :]. Points are rows.
template <class Tile, int D, bool Warm>
struct Deslice {
    using T = typename Tile::T;
    using Tables = SliceTables<Tile, D, true>;
    static constexpr int P = kGroups<T, D>;
    static constexpr bool kHold = D <= Tile::kHeld;
    using Copies = Ring<T, D, 1, 1, P>;
    static constexpr bool kAnyRows = true, kPairs = sizeof(T) == 2;
    TILE_BOTH static constexpr int shared_bytes(int warps, int rows, int team)
    {
        return team * Tables::bytes(rows) + warps * Copies::kAll;
    }

    Points<T> points;
    const float* states;  // (H, S, D)
    Rows<T> y;

    TILE_FN void operator()(const Tile& tile, const Block& block) const
    {
        constexpr int kSteps = D / 16, kLineX = kLine<T, D>;
        const int h = block.head(), S = points.num_slices, dim = points.head_dim;
        const Copies ring(block, block.team * Tables::bytes(points.table_rows));
        const Tables tables(block, points, states);
        for_each_group<D, P>(
            tile, block, points.count, padded_slices(S) > points.table_rows,
            [&](std::int64_t n, int slot) {
                ring.copy(tile, block, slot, 0, points.x, points.x_stride, n, points.count, dim);
                ring.copy_numbers(tile, slot, 0, points.log_sums + h * points.padded + n);
            },
            [&](std::int64_t n, int slot) {
                const LeftRows<Tile, D, P, kHold> x(tile, ring.array(slot, 0));
                float log_sum[P][Tile::kRows];
                typename Tile::Acc found[P][kSteps];
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    tile.load_rows(log_sum[p], ring.numbers(slot, 0) + 16 * p);
                    TILE_UNROLL
                    for (int k = 0; k < kSteps; ++k) clear<Tile>(found[p][k]);
                }
                for_each_16_slices<sizeof(T) == 2 ? 4 : 1>(block, S, points.table_rows, tables, [&](int s, int row) {
                    typename Tile::Acc w[P];
                    logits_of<Tile, D, P, kHold, Warm>(tile, w, x, tables.slices + row * kLineX, tables.bias + row,
                                                       points, h, n, s);
                    typename Tile::A left[P];
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        TILE_UNROLL
                        for (int r = 0; r < Tile::kRows; ++r) {
                            TILE_UNROLL
                            for (int c = 0; c < Tile::kCols; ++c)
                                w[p].v[r][c] = power_of_2(w[p].v[r][c] - log_sum[p][r]);
                        }
                        left[p] = tile.to_a(w[p]);
                    }
                    TILE_UNROLL
                    for (int k = 0; k < kSteps; ++k) {
                        const auto right = tile.load_b_rows(tables.states + row * kLineX + k * 16, kLineX);
                        TILE_UNROLL
                        for (int p = 0; p < P; ++p) tile.mma(found[p][k], left[p], right);
                    }
                });
                tile.sync();  // all threads have read x: its memory is reused for the result
                T* place = ring.array(slot, 0);
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    TILE_UNROLL
                    for (int k = 0; k < kSteps; ++k)
                        tile.store(place + 16 * p * kLineX + k * 16, kLineX, found[p][k], 1.0f);
                }
                tile.sync();
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    const std::int64_t first = n + 16 * p, left = points.count - first;
                    tile.template copy_rows_out<D, kLineX>(y.rows + first * y.stride + h * dim, y.stride,
                                                           place + 16 * p * kLineX,
                                                           static_cast<int>(left < 16 ? left : 16), dim);
                }
            });
    }
};

}  // namespace meshard::tiles
