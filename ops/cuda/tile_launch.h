// SPDX-License-Identifier: Apache-2.0
// Selects the kernels for a function of tile_kernels.h. A launcher starts them: for a GPU in tile_launch_cuda.h, for
// the host in tile_launch_host.h.
//
//     launcher.slices<Tile, MinBlocks>(kernel, chunks)
//         runs a kernel of slice_tiles.h for all heads and chunks of slices
//     launcher.sums_in_slices<Tile, MinBlocks>(kernel, parts, chunks, sums)
//         also adds the kernel's parts (`parts` points into the kernel) to `sums`
//     launcher.rows(kernel, most_parts, blocks, chunks, shared)
//         runs a kernel of row_tiles.h in min(most_parts, blocks a multiprocessor) parts; returns their number
//     launcher.threads(), launcher.warps(), launcher.shared(), launcher.numbers<N>(count)
//         threads and warps of a block, and the most bytes of shared memory that it may have
#pragma once

#include "ops/cuda/row_tiles.h"
#include "ops/cuda/slice_tile_gradients.h"
#include "ops/cuda/slice_tile_sums.h"
#include "ops/cuda/tile_kernels.h"
#include "ops/cuda/token_attention.h"
#include "ops/cuda/weight_folding.h"

#include <stdexcept>
#include <type_traits>

namespace meshard::tiles {

template <class T>
Points<T> points_of(const TilePoints& p)
{
    return {static_cast<const T*>(p.x.rows), p.x.stride, p.slices,     p.bias,
            p.inverse_temperature,           p.noise,    p.log_sums,   p.count,
            padded_points(p.count),          p.heads,    p.num_slices, p.head_dim,
            padded_slices(p.num_slices)};
}

template <class T>
Rows<T> rows_of(const TileRows& rows)
{
    return {static_cast<T*>(rows.rows), rows.stride};
}

/// Number of slices whose sums one warp keeps in registers; few where it keeps more of each.
template <TileMath M, int D, bool Few>
constexpr int kChunk = D <= 32   ? (M == TileMath::Float32 && Few ? 32 : 64)
                       : D == 64 ? 32
                                 : 16;

/// Number of blocks on a multiprocessor for which the compiler must leave registers.
template <TileMath M, int D, bool Warm>
constexpr int kSumBlocks = D <= 64 && sizeof(typename Storage<M>::type) == 2 && !Warm ? 3 : 2;

/// Calls `work` with the kind of arithmetic as a type.
template <class Work>
void by_math(TileMath math, const Work& work)
{
    switch (math) {
    case TileMath::Bfloat16:
        return work(std::integral_constant<TileMath, TileMath::Bfloat16>());
    case TileMath::Float16:
        return work(std::integral_constant<TileMath, TileMath::Float16>());
#ifdef __CUDACC__
    case TileMath::Tf32:
        return work(std::integral_constant<TileMath, TileMath::Tf32>());
#else
    case TileMath::Tf32:  // a host multiplies in fp32 for both
#endif
    case TileMath::Float32:
        return work(std::integral_constant<TileMath, TileMath::Float32>());
    }
}

/// Calls `work` with the smallest head size with kernels in which the head fits, and with whether points have
/// temperatures.
template <TileMath M, class Work>
void with_head(const TilePoints& points, const Work& work)
{
    const int head_dim = points.head_dim;
    if (head_dim % 8 != 0 || head_dim < 8 || head_dim > kMaxTileHead)
        throw std::logic_error("heads of slice kernels have 8, 16, 24 ... 128 channels");
    if (points.inverse_temperature) {
        if (head_dim > kMaxWarmTileHead)
            throw std::logic_error("slice kernels for points with temperatures have heads of at most 64 channels");
        if (head_dim <= 32) return work(std::integral_constant<int, 32>(), std::true_type());
        return work(std::integral_constant<int, 64>(), std::true_type());
    }
    if constexpr (sizeof(typename Storage<M>::type) == 2) {
        if (head_dim <= 16) return work(std::integral_constant<int, 16>(), std::false_type());
    }
    if (head_dim <= 32) return work(std::integral_constant<int, 32>(), std::false_type());
    if (head_dim <= 64) return work(std::integral_constant<int, 64>(), std::false_type());
    work(std::integral_constant<int, 128>(), std::false_type());
}

template <class Launcher, class N>
void add_parts(const Launcher& launcher, const N* parts, N* out, std::int64_t size, int count)
{
    const auto blocks = (size + Block::kLanes - 1) / Block::kLanes;
    launcher.rows(AddParts<N>{parts, out, size, count}, blocks, 0, 1, launcher.threads() * static_cast<int>(sizeof(N)));
}

/// Adds or merges the parts of a kernel: (parts, H, S, D + 1).
template <class Kernel, class Launcher>
void unite_parts(const Launcher& launcher, const float* parts, float* out, std::int64_t size, int count, int width)
{
    if (!Kernel::kMeans) return add_parts(launcher, parts, out, size, count);
    launcher.rows(MergeParts{parts, out, size, count, width}, (size + Block::kLanes - 1) / Block::kLanes, 0, 1,
                  3 * launcher.threads() * static_cast<int>(sizeof(float)));
}

template <TileMath M, class Launcher>
void sum_in_slices_by(const Launcher& launcher, const TilePoints& p, const TileRows& values, bool find_log_sums,
                      float* sums)
{
    const auto size = static_cast<std::int64_t>(p.heads) * p.num_slices * (p.head_dim + 1);
    if (p.count == 0) return add_parts<Launcher, float>(launcher, nullptr, sums, size, 0);
    with_head<M>(p, [&](auto dim, auto is_warm) {
        constexpr bool kWarm = decltype(is_warm)::value;
        constexpr int D = decltype(dim)::value, SC = kChunk<M, D, kWarm>;
        using T = typename Storage<M>::type;
        const auto points = points_of<T>(p);
        const auto v = rows_of<const T>(values);
        if (find_log_sums && p.num_slices <= SC) {
            SliceSums<Tile<M>, D, SC, true, kWarm> kernel{points, v, nullptr};
            return launcher.template sums_in_slices<Tile<M>, kSumBlocks<M, D, kWarm>>(kernel, kernel.parts, 1, sums);
        }
        if (find_log_sums)
            launcher.template slices<Tile<M>, kSumBlocks<M, D, kWarm>>(LogSums<Tile<M>, D, kWarm>{points}, 1);
        SliceSums<Tile<M>, D, SC, false, kWarm> kernel{points, v, nullptr};
        launcher.template sums_in_slices<Tile<M>, kSumBlocks<M, D, kWarm>>(kernel, kernel.parts,
                                                                           (p.num_slices + SC - 1) / SC, sums);
    });
}

template <TileMath M, class Launcher>
void find_log_sums_by(const Launcher& launcher, const TilePoints& p)
{
    if (p.count == 0) return;
    with_head<M>(p, [&](auto dim, auto is_warm) {
        constexpr int D = decltype(dim)::value;
        constexpr bool kWarm = decltype(is_warm)::value;
        using T = typename Storage<M>::type;
        launcher.template slices<Tile<M>, kSumBlocks<M, D, kWarm>>(LogSums<Tile<M>, D, kWarm>{points_of<T>(p)}, 1);
    });
}

template <TileMath M, class Launcher>
void find_point_means_by(const Launcher& launcher, const TilePoints& p, const TileRows& values, float* means)
{
    with_head<M>(p, [&](auto dim, auto is_warm) {
        constexpr int D = decltype(dim)::value, SC = kChunk<M, D, false>;
        using T = typename Storage<M>::type;
        using Means = SliceSums<Tile<M>, D, SC, true, false, true>;
        if constexpr (decltype(is_warm)::value) {
            throw std::logic_error("points that slices attend to have no temperatures");
        } else {
            const auto size = static_cast<std::int64_t>(p.heads) * p.num_slices * (p.head_dim + 1);
            if (p.count == 0) return unite_parts<Means>(launcher, nullptr, means, size, 0, p.head_dim + 1);
            const auto points = points_of<T>(p);
            const auto v = rows_of<const T>(values);
            if (p.num_slices <= SC) {
                Means kernel{points, v, nullptr};
                return launcher.template sums_in_slices<Tile<M>, kSumBlocks<M, D, false>>(kernel, kernel.parts, 1,
                                                                                          means);
            }
            launcher.template slices<Tile<M>, kSumBlocks<M, D, false>>(LogSums<Tile<M>, D, false>{points}, 1);
            constexpr int kFew = M == TileMath::Float32 && D <= 64 ? SC / 2 : SC;
            SliceSums<Tile<M>, D, kFew, false, false, true> kernel{points, v, nullptr};
            launcher.template sums_in_slices<Tile<M>, kSumBlocks<M, D, false>>(kernel, kernel.parts,
                                                                               (p.num_slices + kFew - 1) / kFew, means);
        }
    });
}

template <TileMath M, class Launcher>
void bring_from_slices_by(const Launcher& launcher, const TilePoints& p, const float* states, const TileRows& y)
{
    if (p.count == 0) return;
    with_head<M>(p, [&](auto dim, auto is_warm) {
        constexpr bool kWarm = decltype(is_warm)::value;
        constexpr int D = decltype(dim)::value;
        using T = typename Storage<M>::type;
        launcher.template slices<Tile<M>, kSumBlocks<M, D, kWarm>>(
            Deslice<Tile<M>, D, kWarm>{points_of<T>(p), states, rows_of<T>(y)}, 1);
    });
}

template <TileMath M, class Launcher>
void find_slice_gradients_by(const Launcher& launcher, const TilePoints& p, const TileGradients& g,
                             float* slice_gradients)
{
    const auto size = static_cast<std::int64_t>(p.heads) * p.num_slices * (p.head_dim + 1);
    if (p.count == 0) return add_parts<Launcher, float>(launcher, nullptr, slice_gradients, size, 0);
    with_head<M>(p, [&](auto dim, auto is_warm) {
        constexpr bool kWarm = decltype(is_warm)::value;
        constexpr int D = decltype(dim)::value, kInRegisters = 64;
        using T = typename Storage<M>::type;
        const auto points = points_of<T>(p);
        Gradients<T> of{g.states,
                        g.sums_gradient,
                        rows_of<const T>(g.features),
                        rows_of<const T>(g.y_gradient),
                        rows_of<T>(g.x_gradient),
                        rows_of<T>(g.features_gradient),
                        g.warmth_gradient,
                        g.point_means,
                        nullptr,
                        nullptr};
        if constexpr (sizeof(T) == 2 && D <= 32 && !kWarm) {
            if (!g.point_means && p.num_slices <= kInRegisters) {
                PointGradients<Tile<M>, D, kInRegisters, false> kernel{points, of};
                return launcher.template sums_in_slices<Tile<M>, 2>(kernel, kernel.of.parts, 1, slice_gradients);
            }
        }
        const auto means = launcher.template numbers<float>(p.heads * points.padded);
        of.means = means.data();
        const auto run = [&](auto latents) {
            constexpr bool kLatents = decltype(latents)::value;
            constexpr int SC = kChunk<M, D, (kWarm || kLatents)>;
            launcher.template slices<Tile<M>, 2>(PointGradients<Tile<M>, D, 0, kWarm, kLatents>{points, of}, 1);
            SliceWeightGradients<Tile<M>, D, SC, kWarm, kLatents> kernel{points, of};
            launcher.template sums_in_slices<Tile<M>, 2>(kernel, kernel.of.parts, (p.num_slices + SC - 1) / SC,
                                                         slice_gradients);
        };
        if constexpr (!kWarm) {
            if (g.point_means) return run(std::true_type());
        }
        run(std::false_type());
    });
}

template <TileMath M, class Launcher>
void round_totals_by(const Launcher& launcher, const float* states, const float* sums, const float* state_gradients,
                     float* sums_gradient, std::int64_t slices, int head_dim)
{
    if (M == TileMath::Float32) return;
    launcher.rows(RoundTotals<M>{states, sums, state_gradients, sums_gradient, slices, head_dim},
                  (slices + launcher.threads() - 1) / launcher.threads(), 0, 1, 0);
}

/// Calls `work` with a number of the rows' type, and with the number of 16-byte pieces of such a row that a lane keeps:
/// 0 for rows that are not whole pieces or are too long.
template <class Work>
void with_rows(RowType type, std::int64_t channels, const Work& work)
{
    const auto typed = [&](auto number) {
        using T = decltype(number);
        const auto pieces = channels % Piece<T>::kCount == 0 ? channels / Piece<T>::kCount : 0;
        if constexpr (sizeof(T) == 8)
            return work(number, std::integral_constant<int, 0>());
        else if (pieces > 0 && pieces <= 32)
            return work(number, std::integral_constant<int, 1>());
        else if (pieces > 0 && pieces <= 64)
            return work(number, std::integral_constant<int, 2>());
        else if (pieces > 0 && pieces <= 128)
            return work(number, std::integral_constant<int, 4>());
        else
            return work(number, std::integral_constant<int, 0>());
    };
    switch (type) {
    case RowType::Bfloat16:
        return typed(Bfloat16());
    case RowType::Float16:
        return typed(Float16());
    case RowType::Float32:
        return typed(float());
    case RowType::Float64:
        return typed(double());
    }
}

template <class Launcher>
void normalize_rows_by(const Launcher& launcher, const NormalizedRows& r)
{
    if (r.rows == 0) return;
    with_rows(r.type, r.channels, [&](auto number, auto pieces) {
        using T = decltype(number);
        const NormalizeRows<T, decltype(pieces)::value> kernel{static_cast<const T*>(r.x),
                                                               static_cast<const T*>(r.add),
                                                               static_cast<const Number<T>*>(r.bias),
                                                               static_cast<const Number<T>*>(r.after),
                                                               static_cast<T*>(r.sum),
                                                               static_cast<T*>(r.x_hat),
                                                               static_cast<Number<T>*>(r.scales),
                                                               r.rows,
                                                               static_cast<int>(r.channels),
                                                               r.epsilon};
        launcher.rows(kernel, (r.rows + launcher.warps() - 1) / launcher.warps(), 16, 1, 0);
    });
}

template <class T, class Launcher>
void sum_rows_by(const Launcher& launcher, const void* x, void* sums, std::int64_t rows, std::int64_t channels)
{
    const auto chunks = (channels + launcher.threads() - 1) / launcher.threads();
    const auto most = launcher.parts(rows, 8, static_cast<int>(chunks));
    const auto parts = launcher.template numbers<Number<T>>(most * channels);
    if (rows > 0)
        launcher.rows(SumRows<T>{static_cast<const T*>(x), parts.data(), rows, static_cast<int>(channels)}, most, 0,
                      static_cast<int>(chunks), 0);
    add_parts(launcher, parts.data(), static_cast<Number<T>*>(sums), channels, rows > 0 ? static_cast<int>(most) : 0);
}

template <class Launcher>
void normalize_rows_backward_by(const Launcher& launcher, const NormalizedRowsGradient& r)
{
    with_rows(r.type, r.channels, [&](auto number, auto pieces) {
        using T = decltype(number);
        using N = Number<T>;
        constexpr int V = decltype(pieces)::value;
        NormalizeRowsBackward<T, V> kernel{static_cast<const T*>(r.gradient),
                                           static_cast<const T*>(r.x_hat),
                                           static_cast<const N*>(r.scales),
                                           static_cast<const T*>(r.before),
                                           static_cast<T*>(r.result),
                                           nullptr,
                                           nullptr,
                                           r.rows,
                                           static_cast<int>(r.channels)};
        const auto parts = launcher.parts((r.rows + launcher.warps() - 1) / launcher.warps(), 6, 1);
        if constexpr (V == 0) {
            if (r.before_sums) sum_rows_by<T>(launcher, r.before, r.before_sums, r.before ? r.rows : 0, r.channels);
            if (r.rows > 0) launcher.rows(kernel, parts, 0, 1, 0);
            if (r.result_sums) sum_rows_by<T>(launcher, r.result, r.result_sums, r.rows, r.channels);
        } else {
            const auto size = parts * r.channels;
            const auto memory = launcher.template numbers<N>((r.before_sums ? size : 0) + (r.result_sums ? size : 0));
            if (r.before_sums) kernel.before_parts = memory.data();
            if (r.result_sums) kernel.result_parts = memory.data() + (r.before_sums ? size : 0);
            if (r.rows > 0)
                launcher.rows(kernel, parts, 0, 1, launcher.threads() * Piece<T>::kCount * static_cast<int>(sizeof(N)));
            const auto used = r.rows > 0 ? static_cast<int>(parts) : 0;
            if (r.before_sums)
                add_parts(launcher, kernel.before_parts, static_cast<N*>(r.before_sums), r.channels, used);
            if (r.result_sums)
                add_parts(launcher, kernel.result_parts, static_cast<N*>(r.result_sums), r.channels, used);
        }
    });
}

template <class Launcher>
void gelu_rows_by(const Launcher& launcher, RowType type, const void* x, void* y, std::int64_t count)
{
    if (count == 0) return;
    with_rows(type, 1, [&](auto number, auto) {
        using T = decltype(number);
        const auto pieces = (count + Piece<T>::kCount - 1) / Piece<T>::kCount;
        launcher.rows(GeluRows<T>{static_cast<const T*>(x), static_cast<T*>(y), count},
                      (pieces + launcher.threads() - 1) / launcher.threads(), 16, 1, 0);
    });
}

template <class Launcher>
void gelu_rows_backward_by(const Launcher& launcher, const GeluGradient& r)
{
    with_rows(r.type, 1, [&](auto number, auto) {
        using T = decltype(number);
        using N = Number<T>;
        const auto* x = static_cast<const T*>(r.x);
        auto *gradient = static_cast<T*>(r.gradient), *y = static_cast<T*>(r.y);
        const auto threads = launcher.threads();
        const auto by_number = [&] {
            const auto count = r.rows * r.channels;
            if (count > 0)
                launcher.rows(GeluNumbersBackward<T>{x, gradient, y, count}, (count + threads - 1) / threads, 16, 1, 0);
            sum_rows_by<T>(launcher, gradient, r.sums, r.rows, r.channels);
        };
        if constexpr (sizeof(T) == 8) {
            by_number();
        } else {
            if (r.channels % Piece<T>::kCount != 0) return by_number();
            const auto per_row = static_cast<int>(r.channels / Piece<T>::kCount),
                       stripe = per_row < threads ? per_row : threads, chunks = (per_row + stripe - 1) / stripe;
            const auto abreast = threads / stripe;
            const auto parts = launcher.parts((r.rows + abreast - 1) / abreast, 8, chunks);
            const auto memory = launcher.template numbers<N>(parts * r.channels);
            const GeluRowsBackward<T> kernel{x,     gradient, y, memory.data(), r.rows, static_cast<int>(r.channels),
                                             stripe};
            if (r.rows > 0)
                launcher.rows(kernel, parts, 0, chunks, threads * Piece<T>::kCount * static_cast<int>(sizeof(N)));
            add_parts(launcher, memory.data(), static_cast<N*>(r.sums), r.channels,
                      r.rows > 0 ? static_cast<int>(parts) : 0);
        }
    });
}

template <class Launcher>
void fold_weights_by(const Launcher& launcher, const FoldedWeights& weights)
{
    with_rows(weights.type, 1, [&](auto number, auto) {
        launcher.rows(FoldWeights<decltype(number)>{weights},
                      (weights.num_rows() + launcher.warps() - 1) / launcher.warps(), 16, 1, 0);
    });
}

template <class Launcher>
void unfold_weights_by(const Launcher& launcher, const UnfoldedWeights& weights)
{
    const auto unfold = [&](auto number) {
        using N = decltype(number);
        const UnfoldWeights<N> kernel{weights, UnfoldWeights<N>::width_for(launcher.threads())};
        std::int64_t groups = 0;
        for (int i = 0; i < weights.count; ++i) groups += kernel.groups(weights.products[i], kernel.width);
        launcher.rows(kernel, groups, 0, 1, 2 * launcher.threads() * static_cast<int>(sizeof(N)));
    };
    if (weights.type == RowType::Float64)
        unfold(double());
    else
        unfold(float());
}

template <class Launcher>
void scale_slices_backward_by(const Launcher& launcher, const SliceScaling& of, const SliceScalingGradient& gradient)
{
    const auto numbers = of.slices * (of.dim + 1);
    launcher.rows(ScaleSlicesBackward{of, gradient}, of.heads + (numbers + launcher.threads() - 1) / launcher.threads(),
                  0, 1, launcher.warps() * static_cast<int>(sizeof(float)));
}

using TokenTile = Tile<TileMath::Float32>;

template <class Launcher>
bool tokens_fit_by(const Launcher& launcher, int count, int dim)
{
    return count <= kMostTokens && dim <= kMaxTileHead &&
           TokenMatrices::bytes(count, dim, AttendTokensBackward<TokenTile>::kMatrices) <= launcher.shared();
}

template <class Launcher>
void attend_tokens_by(const Launcher& launcher, const TokenAttention& of, float* states)
{
    using Kernel = AttendTokens<TokenTile>;
    if (of.heads > 0)
        launcher.rows(Kernel{of, states}, of.heads, 0, 1, TokenMatrices::bytes(of.count, of.dim, Kernel::kMatrices));
}

template <class Launcher>
void attend_tokens_backward_by(const Launcher& launcher, const TokenAttention& of,
                               const TokenAttentionGradient& gradient)
{
    using Kernel = AttendTokensBackward<TokenTile>;
    const auto size = std::int64_t{3} * of.dim * of.dim;
    const auto parts = launcher.template numbers<float>(of.heads * size);
    if (of.heads > 0)
        launcher.rows(Kernel{of, gradient, parts.data()}, of.heads, 0, 1,
                      TokenMatrices::bytes(of.count, of.dim, Kernel::kMatrices));
    add_parts(launcher, parts.data(), gradient.weight_gradient, size, of.heads);
}

}  // namespace meshard::tiles
