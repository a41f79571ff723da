// SPDX-License-Identifier: Apache-2.0
// The kernels of slice attention's backward pass (slice_tiles.h).
#pragma once

#include "ops/cuda/slice_tiles.h"

namespace meshard::tiles {

template <class T>
struct Gradients {
    const float* states;         ///< (H, S, D)
    const float* sums_gradient;  ///< (H, S, D + 1)
    Rows<const T> features, result_gradient;
    Rows<T> x_gradient, features_gradient;
    float* warmth_gradient;  ///< (H, padded points); null if points have no temperatures
    /// (H, S, D + 1), with Latents: means over points, and logarithms of the sums of exponentials. `sums_gradient` is
    /// the gradient of these means, and in its last column that of the logarithms.
    const float* point_means;
    float* means;  ///< (H, padded points): weighted means of the weights' gradients
    float* parts;  ///< (parts, H, S, D + 1): gradients of the slices, then of their bias
};

/// Tables of slices in shared memory: slices, states, gradients of the sums, bias (base 2), gradients of the totals,
/// with Latents logarithms of the sums of exponentials over points (base 2).
template <class Tile, int D, bool Latents>
struct GradientTables {
    using T = typename Tile::T;
    TILE_BOTH static constexpr int bytes(int rows)
    {
        return rows * (3 * kLine<T, D> * static_cast<int>(sizeof(T)) + (Latents ? 12 : 8));
    }
    const Points<T>& points;
    const Gradients<T>& of;
    int rows;
    T *all, *slices, *states, *sums;
    float *bias, *totals, *point_log_sums;

    /// Stages the slices from `first` on, unless they are staged in chunks.
    TILE_FN GradientTables(const Block& block, const Points<T>& given, const Gradients<T>& of_given, int first,
                           int num_rows, bool in_chunks)
        : points(given), of(of_given), rows(num_rows), all(reinterpret_cast<T*>(block.shared))
    {
        slices = all + block.member() * (bytes(rows) / static_cast<int>(sizeof(T)));
        states = slices + rows * kLine<T, D>;
        sums = states + rows * kLine<T, D>;
        bias = reinterpret_cast<float*>(sums + rows * kLine<T, D>);
        totals = bias + rows;
        point_log_sums = totals + rows;
        if (in_chunks) return;
        bring(block, first);
        block.sync();
    }
    TILE_FN void bring(const Block& block, int first) const
    {
        const int S = points.num_slices, dim = points.head_dim, table = bytes(rows);
        constexpr int kRow = kLine<T, D>;
        float* numbers = reinterpret_cast<float*>(all + 3 * rows * kRow);
        stage<D>(block, all, table, points.slices, dim, first, rows, S, dim, kLog2E);
        stage<D>(block, all + rows * kRow, table, of.states, dim, first, rows, S, dim, 1.0f);
        stage<D>(block, all + 2 * rows * kRow, table, of.sums_gradient, dim + 1, first, rows, S, dim, 1.0f);
        stage_numbers(block, numbers, table, points.bias, 1, first, rows, S, kLog2E, kNever);
        stage_numbers(block, numbers + rows, table, of.sums_gradient + dim, dim + 1, first, rows, S, 1.0f, 0.0f);
        if (Latents)
            stage_numbers(block, numbers + 2 * rows, table, of.point_means + dim, dim + 1, first, rows, S, kLog2E,
                          0.0f);
    }
};

/// Computes, for 16 P points (rows) and 16 slices, the logits of the weights in base 2, and the gradients of the
/// weights: `g` from the result, and `of_sums` from the sums, which may be `g`, too. Without `Sums` only the former.
template <class Tile, int D, int P, bool Hold, bool Warm, bool Sums, bool Latents>
TILE_FN void weights_and_gradients(const Tile& tile, typename Tile::Acc (&w)[P], typename Tile::Acc (&g)[P],
                                   typename Tile::Acc (&of_sums)[P], const LeftRows<Tile, D, P, Hold>& x,
                                   const LeftRows<Tile, D, P, Hold>& features, const LeftRows<Tile, D, P, Hold>& result,
                                   const GradientTables<Tile, D, Latents>& tables, int h, std::int64_t n, int s,
                                   int row)
{
    constexpr int kLineX = kLine<typename Tile::T, D>;
    if (!Hold) tile.forget();
    float bias[Tile::kCols], totals[Tile::kCols];
    tile.load_cols(bias, tables.bias + row);
    tile.load_cols(totals, tables.totals + row);
    TILE_UNROLL
    for (int p = 0; p < P; ++p) {
        TILE_UNROLL
        for (int r = 0; r < Tile::kRows; ++r) {
            TILE_UNROLL
            for (int c = 0; c < Tile::kCols; ++c) {
                w[p].v[r][c] = bias[c];
                g[p].v[r][c] = 0;
                if (Sums) of_sums[p].v[r][c] = totals[c];
            }
        }
    }
#ifdef __CUDACC__
#pragma unroll(Hold ? D / 16 : 1)
#endif
    for (int k = 0; k < D / 16; ++k) {
        const auto slices = tile.load_b(tables.slices + row * kLineX + k * 16, kLineX),
                   states = tile.load_b(tables.states + row * kLineX + k * 16, kLineX);
        typename Tile::B sums;
        if (Sums) sums = tile.load_b(tables.sums + row * kLineX + k * 16, kLineX);
        TILE_UNROLL
        for (int p = 0; p < P; ++p) {
            tile.mma(w[p], x.at(tile, p, k), slices);
            tile.mma(g[p], result.at(tile, p, k), states);
            if (Sums) tile.mma(of_sums[p], features.at(tile, p, k), sums);
        }
    }
    if (Warm) {
        TILE_UNROLL
        for (int p = 0; p < P; ++p) scale_rows_by_temperature(tile, w[p], tables.points, h, n + 16 * p, s);
    }
}

/// Gradients of x (through the softmax) and of the features. Points are rows.
/// Slices > 0: at most that many slices, kept in registers; the gradients of slices and bias are added in the same pass
/// (Tile::kTransposes). Not warm.
/// Slices == 0: any number of slices; reads them twice, first for the means. SliceWeightGradients must follow.
/// Latents: Slices == 0.
template <class Tile, int D, int Slices, bool Warm, bool Latents = false>
struct PointGradients {
    using T = typename Tile::T;
    using Tables = GradientTables<Tile, D, Latents>;
    static constexpr int P = Slices || Warm ? 1 : kGroups<T, D>;
    static constexpr bool kHold = 3 * D <= Tile::kHeld;
    using Copies = Ring<T, D, 3, 1, P>;
    static constexpr bool kAnyRows = Slices == 0, kPairs = false, kMeans = false;
    TILE_BOTH static constexpr int shared_bytes(int warps, int rows, int team)
    {
        const int all = team * Tables::bytes(Slices ? Slices : rows) + warps * Copies::kAll;
        return Slices ? shared_of_parts<D, Slices ? Slices : 16>(team, all) : all;
    }

    Points<T> points;
    Gradients<T> of;

    TILE_FN void operator()(const Tile& tile, const Block& block) const
    {
        constexpr int kSteps = D / 16, kLineX = kLine<T, D>, kBlocks = Slices ? Slices / 16 : 1;
        using Acc = typename Tile::Acc;
        using Left = LeftRows<Tile, D, P, kHold>;
        const int h = block.head(), S = points.num_slices, dim = points.head_dim,
                  rows_of_table = Slices ? Slices : points.table_rows;
        const bool in_chunks = !Slices && padded_slices(S) > points.table_rows;
        const Tables tables(block, points, of, 0, rows_of_table, in_chunks);
        const Copies ring(block, block.team * Tables::bytes(rows_of_table));

        Acc slice_sums[kBlocks][kSteps];  // slices are rows
        float bias_sums[kBlocks][Tile::kCols];
        if (Slices) {
            TILE_UNROLL
            for (int b = 0; b < kBlocks; ++b) {
                TILE_UNROLL
                for (int k = 0; k < kSteps; ++k) clear<Tile>(slice_sums[b][k]);
                TILE_UNROLL
                for (int c = 0; c < Tile::kCols; ++c) bias_sums[b][c] = 0;
            }
        }

        for_each_group<D, P>(
            tile, block, points.count, in_chunks,
            [&](std::int64_t n, int slot) {
                ring.copy(tile, block, slot, 0, points.x, points.x_stride, n, points.count, dim);
                ring.copy(tile, block, slot, 1, of.features.rows, of.features.stride, n, points.count, dim);
                ring.copy(tile, block, slot, 2, of.result_gradient.rows, of.result_gradient.stride, n, points.count,
                          dim);
                ring.copy_numbers(tile, slot, 0, points.log_sums + h * points.padded + n);
            },
            [&](std::int64_t n, int slot) {
                const Left x(tile, ring.array(slot, 0)), features(tile, ring.array(slot, 1)),
                    result(tile, ring.array(slot, 2));
                float log_sum[P][Tile::kRows], mean[P][Tile::kRows];
                TILE_UNROLL
                for (int p = 0; p < P; ++p) {
                    tile.load_rows(log_sum[p], ring.numbers(slot, 0) + 16 * p);
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) {
                        log_sum[p][r] = n + 16 * p + tile.row(r) < points.count ? log_sum[p][r] : -kNever;
                        mean[p][r] = 0;
                    }
                }
                // All threads have read features and result gradients: if these are held, their memory is reused for
                // the results.
                tile.sync();
                Acc found[P][kSteps];
                const auto clear_found = [&] {
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        TILE_UNROLL
                        for (int k = 0; k < kSteps; ++k) clear<Tile>(found[p][k]);
                    }
                };
                const auto add_to_found = [&](const typename Tile::A(&left)[P], const T* table) {
                    TILE_UNROLL
                    for (int k = 0; k < kSteps; ++k) {
                        if (Latents && D > Tile::kHeld && k % 2 == 0)
                            tile.sync();  // keeps loads in place: they need registers
                        const auto right = tile.load_b_rows(table + k * 16, kLineX);
                        TILE_UNROLL
                        for (int p = 0; p < P; ++p) tile.mma(found[p][k], left[p], right);
                    }
                };
                const auto store_found = [&](int array, float factor, const Rows<T>& to) {
                    T* place = ring.array(slot, array);
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        const std::int64_t first = n + 16 * p, left = points.count - first;
                        const int there = static_cast<int>(left < 16 ? left : 16);
                        T* rows = to.rows + first * to.stride + h * dim;
                        if constexpr (kHold) {
                            TILE_UNROLL
                            for (int k = 0; k < kSteps; ++k)
                                tile.store(place + 16 * p * kLineX + k * 16, kLineX, found[p][k], factor);
                            tile.sync();
                            tile.template copy_rows_out<D, kLineX>(rows, to.stride, place + 16 * p * kLineX, there,
                                                                   dim);
                        } else {
                            TILE_UNROLL
                            for (int k = 0; k < kSteps; ++k)
                                tile.store_out(rows + k * 16, to.stride, found[p][k], factor, there, dim - k * 16);
                        }
                    }
                };
                const auto each = [&](Acc(&a)[P], const auto& f) {
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        TILE_UNROLL
                        for (int r = 0; r < Tile::kRows; ++r) {
                            TILE_UNROLL
                            for (int c = 0; c < Tile::kCols; ++c) f(a[p].v[r][c], p, r, c);
                        }
                    }
                };
                const auto as_left = [&](typename Tile::A(&left)[P], const Acc(&a)[P]) {
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) left[p] = tile.to_a(a[p]);
                };
                /// Turns logits into weights, and adds their part of the means.
                const auto take_weights = [&](Acc(&w)[P], const Acc(&g)[P], typename Tile::A(&left)[P]) {
                    each(w, [&](float& l, int p, int r, int c) {
                        l = power_of_2(l - log_sum[p][r]);
                        mean[p][r] += l * g[p].v[r][c];
                    });
                    as_left(left, w);
                };
                const auto finish_means = [&] {
                    TILE_UNROLL
                    for (int p = 0; p < P; ++p) {
                        tile.sum_over_cols(mean[p]);
                        if (!Slices) tile.store_rows(of.means + h * points.padded + n + 16 * p, mean[p]);
                    }
                };

                typename Tile::A left[P];
                clear_found();
                if constexpr (Slices > 0) {
                    Acc w[kBlocks][P], g[kBlocks][P];
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) {
                        weights_and_gradients<Tile, D, P, kHold, Warm, true>(tile, w[b], g[b], g[b], x, features,
                                                                             result, tables, h, n, b * 16, b * 16);
                        take_weights(w[b], g[b], left);
                        add_to_found(left, tables.sums + b * 16 * kLineX);
                    }
                    store_found(1, 1.0f, of.features_gradient);
                    finish_means();
                    typename Tile::B x_rows[kSteps];
                    TILE_UNROLL
                    for (int k = 0; k < kSteps; ++k) x_rows[k] = tile.load_b_rows(ring.array(slot, 0) + k * 16, kLineX);
                    clear_found();
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) {
                        each(g[b], [&](float& v, int p, int r, int c) {
                            v = w[b][p].v[r][c] * (v - mean[p][r]);
                            bias_sums[b][c] += v;
                        });
                        as_left(left, g[b]);
                        add_to_found(left, tables.slices + b * 16 * kLineX);
                        const auto across = tile.transposed(left[0]);
                        TILE_UNROLL
                        for (int k = 0; k < kSteps; ++k) tile.mma_to_sum(slice_sums[b][k], across, x_rows[k]);
                    }
                } else {
                    Acc w[P], g[P], own[P];  // own: of the sums, where their weights are others
                    auto& of_sums = Latents ? own : g;
                    for_each_16_slices<1>(block, S, rows_of_table, tables, [&](int s, int row) {
                        weights_and_gradients<Tile, D, P, kHold, Warm, !Latents>(tile, w, g, of_sums, x, features,
                                                                                 result, tables, h, n, s, row);
                        if (Latents) {
                            float log_sums[Tile::kCols];
                            tile.load_cols(log_sums, tables.point_log_sums + row);
                            each(own, [&](float& a, int p, int r, int c) {
                                a = power_of_2(w[p].v[r][c] - log_sums[c] + kRaised<T>);
                            });
                        }
                        take_weights(w, g, left);
                        if (Latents) as_left(left, own);
                        add_to_found(left, tables.sums + row * kLineX);
                    });
                    store_found(1, Latents && kRaised<T> > 0 ? 1 / 32768.0f : 1.0f, of.features_gradient);
                    finish_means();
                    clear_found();
                    float inverse_temperature[Tile::kRows],
                        of_inverse_temperature[Tile::kRows] = {};  // P is 1 where they are used
                    if (Warm) {
                        TILE_UNROLL
                        for (int r = 0; r < Tile::kRows; ++r)
                            inverse_temperature[r] =
                                n + tile.row(r) < points.count
                                    ? points.inverse_temperature[h * points.padded + n + tile.row(r)]
                                    : 1.0f;
                    }
                    for_each_16_slices<1>(block, S, rows_of_table, tables, [&](int s, int row) {
                        weights_and_gradients<Tile, D, P, kHold, Warm, true>(tile, w, g, of_sums, x, features, result,
                                                                             tables, h, n, s, row);
                        float log_sums[Tile::kCols];
                        if (Latents) tile.load_cols(log_sums, tables.point_log_sums + row);
                        each(g, [&](float& v, int p, int r, int c) {
                            const float logit = w[p].v[r][c];
                            v = power_of_2(logit - log_sum[p][r]) * (v - mean[p][r]);
                            if (Latents) v += power_of_2(logit - log_sums[c]) * own[p].v[r][c];
                            if (Warm) {
                                of_inverse_temperature[r] += s + tile.col(c) < S ? v * logit : 0.0f;
                                v *= inverse_temperature[r];
                            }
                        });
                        as_left(left, g);
                        add_to_found(left, tables.slices + row * kLineX);
                    });
                    if (Warm) {
                        tile.sum_over_cols(of_inverse_temperature);
                        TILE_UNROLL
                        for (int r = 0; r < Tile::kRows; ++r)
                            of_inverse_temperature[r] *= kLn2 / inverse_temperature[r];
                        tile.store_rows(of.warmth_gradient + h * points.padded + n, of_inverse_temperature);
                    }
                }
                store_found(2, kLn2, of.x_gradient);
            });
        if constexpr (Slices > 0) {
            float last[kBlocks][Tile::kRows];
            totals_by_row(tile, block, bias_sums, last);
            store_part<Tile, D, Slices>(tile, block, slice_sums, last, points.heads, S, dim, of.parts);
        }
    }

    /// Converts totals by column to totals by row, through the warp's own part of shared memory; only in the first
    /// column, so that a sum over columns changes nothing.
    TILE_FN static void totals_by_row(const Tile& tile, const Block& block,
                                      float (&cols)[Slices ? Slices / 16 : 1][Tile::kCols],
                                      float (&rows)[Slices ? Slices / 16 : 1][Tile::kRows])
    {
        float* own = reinterpret_cast<float*>(Copies(block, block.team * Tables::bytes(Slices)).at);
        block.team_sync();
        TILE_UNROLL
        for (int b = 0; b < (Slices ? Slices / 16 : 1); ++b) {
            tile.sum_over_rows(cols[b]);
            tile.store_cols(own + b * 16, cols[b]);
        }
        tile.sync();
        TILE_UNROLL
        for (int b = 0; b < (Slices ? Slices / 16 : 1); ++b) {
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) rows[b][r] = tile.owns_rows() ? own[b * 16 + tile.row(r)] : 0.0f;
        }
    }
};

/// Gradients of SC slices and of their bias, if PointGradients has not added them. Slices are rows.
template <class Tile, int D, int SC, bool Warm, bool Latents = false>
struct SliceWeightGradients {
    using T = typename Tile::T;
    using Tables = GradientTables<Tile, D, Latents>;
    using Copies = Ring<T, D, 3, 2>;
    static constexpr bool kAnyRows = false, kPairs = false, kMeans = false;
    TILE_BOTH static constexpr int shared_bytes(int warps, int, int team)
    {
        return shared_of_parts<D, SC>(team, team * Tables::bytes(SC) + warps * Copies::kAll);
    }

    Points<T> points;
    Gradients<T> of;

    TILE_FN void operator()(const Tile& tile, const Block& block) const
    {
        constexpr int kBlocks = SC / 16, kSteps = D / 16, kLineX = kLine<T, D>;
        const int h = block.head(), S = points.num_slices, dim = points.head_dim;
        const Tables tables(block, points, of, block.chunk * SC, SC, false);
        const Copies ring(block, block.team * Tables::bytes(SC));
        typename Tile::Acc sums[kBlocks][kSteps];
        float totals[kBlocks][Tile::kRows];
        TILE_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
            TILE_UNROLL
            for (int k = 0; k < kSteps; ++k) clear<Tile>(sums[b][k]);
            TILE_UNROLL
            for (int r = 0; r < Tile::kRows; ++r) totals[b][r] = 0;
        }
        for_each_group<D, 1>(
            tile, block, points.count, false,
            [&](std::int64_t n, int slot) {
                ring.copy(tile, block, slot, 0, points.x, points.x_stride, n, points.count, dim);
                ring.copy(tile, block, slot, 1, of.features.rows, of.features.stride, n, points.count, dim);
                ring.copy(tile, block, slot, 2, of.result_gradient.rows, of.result_gradient.stride, n, points.count,
                          dim);
                ring.copy_numbers(tile, slot, 0, points.log_sums + h * points.padded + n);
                ring.copy_numbers(tile, slot, 1, of.means + h * points.padded + n);
            },
            [&](std::int64_t n, int slot) {
                float log_sum[Tile::kCols], mean[Tile::kCols];
                tile.load_cols(log_sum, ring.numbers(slot, 0));
                tile.load_cols(mean, ring.numbers(slot, 1));
                if (n + 16 > points.count) {
                    TILE_UNROLL
                    for (int c = 0; c < Tile::kCols; ++c)
                        log_sum[c] = n + tile.col(c) < points.count ? log_sum[c] : -kNever;
                }
                typename Tile::Acc w[kBlocks], g[kBlocks], own[kBlocks];  // own: as in PointGradients
                auto& of_sums = Latents ? own : g;
                TILE_UNROLL
                for (int b = 0; b < kBlocks; ++b) {
                    float bias[Tile::kRows], of_total[Tile::kRows];
                    tile.load_rows(bias, tables.bias + b * 16);
                    tile.load_rows(of_total, tables.totals + b * 16);
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) {
                        TILE_UNROLL
                        for (int c = 0; c < Tile::kCols; ++c) {
                            w[b].v[r][c] = bias[r];
                            g[b].v[r][c] = 0;
                            of_sums[b].v[r][c] = of_total[r];
                        }
                    }
                }
#ifdef __CUDACC__
#pragma unroll(Tile::kLoadsInPlace ? 1 : kSteps)
#endif
                for (int k = 0; k < kSteps; ++k) {
                    if (Tile::kLoadsInPlace) tile.sync();
                    const auto x = tile.load_b(ring.array(slot, 0) + k * 16, kLineX),
                               features = tile.load_b(ring.array(slot, 1) + k * 16, kLineX),
                               result = tile.load_b(ring.array(slot, 2) + k * 16, kLineX);
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) {
                        if (Tile::kLoadsInPlace) tile.sync();
                        tile.mma(w[b], tile.load_a(tables.slices + b * 16 * kLineX + k * 16, kLineX), x);
                        tile.mma(g[b], tile.load_a(tables.states + b * 16 * kLineX + k * 16, kLineX), result);
                        tile.mma(of_sums[b], tile.load_a(tables.sums + b * 16 * kLineX + k * 16, kLineX), features);
                    }
                }
                typename Tile::A left[kBlocks];
                TILE_UNROLL
                for (int b = 0; b < kBlocks; ++b) {
                    if (Warm) scale_columns_by_temperature(tile, w[b], points, h, n, block.chunk * SC + b * 16);
                    float log_sums[Tile::kRows];
                    if (Latents) tile.load_rows(log_sums, tables.point_log_sums + b * 16);
                    TILE_UNROLL
                    for (int r = 0; r < Tile::kRows; ++r) {
                        TILE_UNROLL
                        for (int c = 0; c < Tile::kCols; ++c) {
                            float& v = g[b].v[r][c];
                            v = power_of_2(w[b].v[r][c] - log_sum[c]) * (v - mean[c]);
                            if (Latents && n + tile.col(c) < points.count)
                                v += power_of_2(w[b].v[r][c] - log_sums[r]) * own[b].v[r][c];
                            if (Warm && n + tile.col(c) < points.count)
                                v *= points.inverse_temperature[h * points.padded + n + tile.col(c)];
                            if (!Latents) totals[b][r] += v;
                        }
                    }
                    left[b] = tile.to_a(g[b]);
                }
                TILE_UNROLL
                for (int k = 0; k < kSteps; ++k) {
                    if (Tile::kLoadsInPlace) tile.sync();
                    const auto x_rows = tile.load_b_rows(ring.array(slot, 0) + k * 16, kLineX);
                    TILE_UNROLL
                    for (int b = 0; b < kBlocks; ++b) tile.mma_to_sum(sums[b][k], left[b], x_rows);
                }
            });
        store_part<Tile, D, SC>(tile, block, sums, totals, points.heads, S, dim, of.parts);
    }
};

}  // namespace meshard::tiles
