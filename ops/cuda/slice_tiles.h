// SPDX-License-Identifier: Apache-2.0
// Slice attention of one head over all points of a shard, one pass over the points for each kernel, on fragments of 16
// x 16 numbers (tensor_tile.h).
//
//     w[n, s] = softmax over s of (x[n, :] . slices[s, :] + bias[s] + noise[n, s]) * inverse_temperature[n]
//
// The weights w are not stored but computed again from log_sums.
//
// The fragment "16 slices by 16 points" has two orientations:
//   slices are rows    for sums over points (sums, gradients of states and of slices): the weights' accumulator is the
//                      left factor of the next product, without a copy; its inner dimension is the points
//   points are rows    for sums over slices (deslice, gradients of points): likewise, the inner dimension is the slices
//
// A warp processes 16 points at a time (32 if a fragment of the tables can then be used twice), every (parts *
// warps)-th group, from a ring of asynchronous copies, and shares nothing with other warps: no barrier of the block
// inside the loop. Sums stay in the warp's registers until the end; then the warps of a block add theirs in order, and
// a second kernel adds those of the blocks in order, so that sums have the same bits every time.
//
// Tables of slices that are too large for shared memory are staged chunk by chunk for each group of points; then the
// warps of a block proceed in step.
//
// Warm kernels are those for points that have noise and temperatures of their own.
//
// Kernels with `Latents` are for slices that also attend to the points (FLARE, Puri et al. 2025):
//
//     a[n, s] = softmax over n of x[n, :] . slices[s, :]
//
// Means over points by these weights are found with a running maximum for each slice. A part is the means of its points
// and the logarithm of the sum of their exponentials; parts are merged by these logarithms.
//
// Logits are computed in base 2: slices and bias are multiplied by log2(e) when they are staged, and log_sums is in
// base 2.
#pragma once

#include "ops/cuda/tensor_tile.h"
#include "ops/cuda/tile_block.h"

#include <type_traits>

namespace meshard::tiles {

template <class T>
struct Points {
    const T* x;  ///< (points, H, D); consecutive points are `x_stride` numbers apart
    std::int64_t x_stride;
    const float* slices;               ///< (H, S, D), temperature included
    const float* bias;                 ///< (H, S)
    const float* inverse_temperature;  ///< (H, padded points), inverse temperatures of points; null: 1
    /// (points, H, S), added to the logits before the division by a point's temperature; null: 0.
    const float* noise;
    float* log_sums;             ///< (H, padded points), base 2
    std::int64_t count, padded;  ///< padded: rounded up to a multiple of 32
    int heads, num_slices, head_dim;
    int table_rows;  ///< slices that shared memory holds at a time, a multiple of 16
};

template <class T>
struct Rows {
    T* rows;  ///< (points, H, D)
    std::int64_t stride;
};

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f, kNever = -1e30f;

/// Logarithm (base 2) of the factor by which products take weights over points: 1 / points is subnormal in float16.
template <class T>
constexpr float kRaised = 0;
template <>
constexpr float kRaised<Float16> = 15;

/// Rows of shared memory are padded by 16 bytes, so that eight consecutive rows are in different banks.
template <class T, int D>
constexpr int kLine = D + 16 / static_cast<int>(sizeof(T));

/// Number of asynchronous copies that a warp keeps in progress.
template <int D>
constexpr int kStages = D <= 64 ? 3 : 2;

/// Groups of 16 points that a warp processes at once if tables of slices are read again for each: as many as fit its
/// registers.
template <class T, int D>
constexpr int kGroups = sizeof(T) == 2 && D <= 32 ? 2 : 1;

TILE_BOTH constexpr int padded_slices(int S)
{
    return (S + 15) / 16 * 16;
}

/// A warp's ring of copies: `Arrays` of 16 P rows, and `Numbers` times 16 P numbers (one for each point).
template <class T, int D, int Arrays, int Numbers, int P = 1>
struct Ring {
    static constexpr int kArray = 16 * P * kLine<T, D>;
    static constexpr int kBytes = Arrays * kArray * static_cast<int>(sizeof(T)) + Numbers * 64 * P;
    static constexpr int kAll = kStages<D> * kBytes;
    char* at;

    /// The ring of this warp; `tables` is the number of bytes before the rings.
    TILE_FN Ring(const Block& block, int tables) : at(block.shared + tables + block.warp * kAll) {}

    TILE_FN T* array(int slot, int i) const { return reinterpret_cast<T*>(at + slot * kBytes) + i * kArray; }
    TILE_FN float* numbers(int slot, int i) const
    {
        return reinterpret_cast<float*>(at + slot * kBytes + Arrays * kArray * sizeof(T)) + i * 16 * P;
    }

    /// Starts to copy the rows of points n to n + 16 P - 1 to array i. The two warps of a team each copy half of the
    /// rows for both.
    template <class Tile>
    TILE_FN void copy(const Tile& tile, const Block& block, int slot, int i, const T* rows, std::int64_t stride,
                      std::int64_t n, std::int64_t count, int channels) const
    {
        TILE_UNROLL
        for (int p = 0; p < P; ++p) {
            const std::int64_t left = count - n - 16 * p;
            const int there = static_cast<int>(left < 0 ? 0 : left < 16 ? left : 16);
            T* to = array(slot, i) + 16 * p * kLine<T, D>;
            const T* from = (left > 0 ? rows + (n + 16 * p) * stride : rows) + block.first_head * channels;
            if (block.team == 1)
                tile.template copy_rows_async<D, kLine<T, D>, 1>(to, 0, from, stride, there, channels, 0);
            else
                tile.template copy_rows_async<D, kLine<T, D>, 2>(
                    to - block.member() * (kAll / static_cast<int>(sizeof(T))), kAll / static_cast<int>(sizeof(T)),
                    from, stride, there, channels, block.member());
        }
    }
    template <class Tile>
    TILE_FN void copy_numbers(const Tile& tile, int slot, int i, const float* from) const
    {
        TILE_UNROLL
        for (int p = 0; p < P; ++p) tile.copy_16_async(numbers(slot, i) + 16 * p, from + 16 * p);
    }
};

/// Calls `copy(first point, slot)` ahead of `work(first point, slot)` for the warp's groups of 16 P points. In step:
/// all warps of the block make the same number of calls; warps that have no more groups repeat the last one, which
/// stores the same numbers again.
template <int D, int P, class Tile, class Copy, class Work>
TILE_FN void for_each_group(const Tile& tile, const Block& block, std::int64_t count, bool in_step, const Copy& copy,
                            const Work& work)
{
    constexpr int kAhead = kStages<D>;
    // 32 bits number 34 billion points; they are used where registers are short.
    using Count = std::conditional_t<Tile::kLoadsInPlace, int, std::int64_t>;
    const Count groups = static_cast<Count>((count + 16 * P - 1) / (16 * P)),
                step = static_cast<Count>(block.parts) * block.teams();
    const Count first = static_cast<Count>(block.part) * block.teams() + (in_step ? 0 : block.team_number());
    const Count rounds = groups > first ? (groups - first + step - 1) / step : 0;
    const auto point = [&](Count round) {
        const Count group = first + (in_step ? block.team_number() : 0) + round * step;
        return static_cast<std::int64_t>(group < groups ? group : groups - 1) * (16 * P);
    };
    TILE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
        if (i < rounds) copy(point(i), i);
        tile.commit();
    }
    int slot = 0;
    for (Count round = 0; round < rounds; ++round) {
        tile.template wait<kAhead - 1>();
        block.team_sync();
        work(point(round), slot);
        block.team_sync();
        if (round + kAhead < rounds) copy(point(round + kAhead), slot);
        tile.commit();
        slot = slot + 1 == kAhead ? 0 : slot + 1;
    }
    tile.template wait<0>();
}

/// Copies `rows` rows of the slices' numbers (H, S, from_line) to shared memory, with zeros after the last slice and
/// channel. The tables of the heads of a team are `table` bytes apart.
template <int D, class T>
TILE_FN void stage(const Block& block, T* to, int table, const float* from, int from_line, int first, int rows,
                   int num_slices, int head_dim, float factor)
{
    block.each(block.team * rows * D, [&](int i) {
        const int d = i % D, s = i / D % rows, m = i / D / rows;
        T* line = reinterpret_cast<T*>(reinterpret_cast<char*>(to) + m * table) + s * kLine<T, D>;
        assign(line[d],
               first + s < num_slices && d < head_dim
                   ? from[(static_cast<std::int64_t>(block.first_head + m) * num_slices + first + s) * from_line + d] *
                         factor
                   : 0.0f);
    });
}

TILE_FN void stage_numbers(const Block& block, float* to, int table, const float* from, int from_line, int first,
                           int rows, int num_slices, float factor, float otherwise)
{
    block.each(block.team * rows, [&](int i) {
        const int s = i % rows, m = i / rows;
        reinterpret_cast<float*>(reinterpret_cast<char*>(to) + m * table)[s] =
            first + s < num_slices
                ? from[(static_cast<std::int64_t>(block.first_head + m) * num_slices + first + s) * from_line] * factor
                : otherwise;
    });
}

/// Calls `f(first, row)` for every 16 slices, whose tables are then in shared memory from `row` on.
/// `tables.bring(first)` stages a chunk; if one chunk has all slices, it is already staged.
template <int Unroll, class Tables, class F>
TILE_FN void for_each_16_slices(const Block& block, int num_slices, int table_rows, const Tables& tables, const F& f)
{
    const int all = padded_slices(num_slices);
    if (all <= table_rows) {
#ifdef __CUDACC__
#pragma unroll Unroll
#endif
        for (int s = 0; s < all; s += 16) f(s, s);
        return;
    }
    for (int chunk = 0; chunk < all; chunk += table_rows) {
        block.sync();
        tables.bring(block, chunk);
        block.sync();
        for (int s = 0; s < table_rows && chunk + s < all; s += 16) f(chunk + s, s);
    }
}

template <class Tile>
TILE_FN void clear(typename Tile::Acc& acc)
{
    TILE_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) {
        TILE_UNROLL
        for (int c = 0; c < Tile::kCols; ++c) acc.v[r][c] = 0;
    }
}

/// Copies the lines of SC slices from shared memory to the block's part.
template <int D, int SC>
TILE_FN void copy_part(const Block& block, int heads, int num_slices, int head_dim, float* parts)
{
    const float* all = reinterpret_cast<const float*>(block.shared);
    const int first = block.chunk * SC, width = head_dim + 1;
    float* to = parts + (static_cast<std::int64_t>(block.part) * heads + block.first_head) * num_slices * width;
    block.each(block.team * SC * width, [&](int i) {
        const int d = i % width, s = i / width % SC, m = i / width / SC;
        const float* line = all + (m * SC + s) * (D + 1);
        if (first + s < num_slices) to[(m * num_slices + first + s) * width + d] = d < head_dim ? line[d] : line[D];
    });
}

/// Adds the sums of the warps of a block in order, and stores them as the block's part: (parts, H, S, D + 1).
template <class Tile, int D, int SC>
TILE_FN void store_part(const Tile& tile, const Block& block, const typename Tile::Acc (&sums)[SC / 16][D / 16],
                        float (&last)[SC / 16][Tile::kRows], int heads, int num_slices, int head_dim, float* parts)
{
    constexpr int kPart = SC * (D + 1);
    float* all = reinterpret_cast<float*>(block.shared);
    block.sync();
    for (int turn = 0; turn < block.teams(); ++turn) {
        if (turn == block.team_number()) {
            TILE_UNROLL
            for (int b = 0; b < SC / 16; ++b) {
                tile.sum_over_cols(last[b]);
                TILE_UNROLL
                for (int r = 0; r < Tile::kRows; ++r) {
                    float* line = all + block.member() * kPart + (b * 16 + tile.row(r)) * (D + 1);
                    TILE_UNROLL
                    for (int k = 0; k < D / 16; ++k) {
                        TILE_UNROLL
                        for (int c = 0; c < Tile::kCols; ++c) {
                            float& to = line[k * 16 + tile.col(c)];
                            to = (turn == 0 ? 0.0f : to) + sums[b][k].v[r][c];
                        }
                    }
                    if (tile.owns_rows()) line[D] = (turn == 0 ? 0.0f : line[D]) + last[b][r];
                }
            }
        }
        block.sync();
    }
    copy_part<D, SC>(block, heads, num_slices, head_dim, parts);
}

/// The same for means over points: `sums` and `totals` are those of exponentials divided by that of `largest` (base 2).
/// The part has means, then logarithms (base 2) of the sums of exponentials.
template <class Tile, int D, int SC>
TILE_FN void merge_part(const Tile& tile, const Block& block, const typename Tile::Acc (&sums)[SC / 16][D / 16],
                        float (&totals)[SC / 16][Tile::kRows], const float (&largest)[SC / 16][Tile::kRows], int heads,
                        int num_slices, int head_dim, float* parts)
{
    float* all = reinterpret_cast<float*>(block.shared) + block.member() * SC * (D + 1);
    block.sync();
    for (int turn = 0; turn < block.teams(); ++turn) {
        if (turn == block.team_number()) {
            TILE_UNROLL
            for (int b = 0; b < SC / 16; ++b) {
                tile.sum_over_cols(totals[b]);
                float before[Tile::kRows];
                TILE_UNROLL
                for (int r = 0; r < Tile::kRows; ++r)
                    before[r] = turn == 0 ? kNever : all[(b * 16 + tile.row(r)) * (D + 1) + D];
                tile.sync();  // all threads of a row have read its logarithm
                TILE_UNROLL
                for (int r = 0; r < Tile::kRows; ++r) {
                    float* line = all + (b * 16 + tile.row(r)) * (D + 1);
                    const float total = totals[b][r], own = total == 0 ? kNever : largest[b][r] + log_2(total),
                                most = fmaxf(before[r], own), of_before = power_of_2(before[r] - most),
                                of_own = power_of_2(own - most), both = of_before + of_own,
                                factor = total == 0 ? 0.0f : of_own / (both * total);
                    TILE_UNROLL
                    for (int k = 0; k < D / 16; ++k) {
                        TILE_UNROLL
                        for (int c = 0; c < Tile::kCols; ++c) {
                            float& to = line[k * 16 + tile.col(c)];
                            to = (turn == 0 ? 0.0f : to * (of_before / both)) + sums[b][k].v[r][c] * factor;
                        }
                    }
                    if (tile.owns_rows()) line[D] = most + log_2(both);
                }
            }
        }
        block.sync();
    }
    copy_part<D, SC>(block, heads, num_slices, head_dim, parts);
}

/// Merges parts of means over points (merge_part), (slices, width) each, in order; logarithms become natural. Lanes and
/// warps as in AddParts.
struct MergeParts {
    const float* parts;
    float* out;
    std::int64_t size;
    int count, width;

    TILE_FN void operator()(const Block& block) const
    {
        auto* shared = reinterpret_cast<float*>(block.shared);
        const int all = block.warps * Block::kLanes, own = block.warp * Block::kLanes + block.lane;
        const std::int64_t at = static_cast<std::int64_t>(block.part) * Block::kLanes + block.lane;
        const std::int64_t last = at / width * width + width - 1;
        float largest = kNever, total = 0, sum = 0;
        if (at < size) {
            for (int p = block.warp; p < count; p += block.warps) largest = fmaxf(largest, parts[p * size + last]);
            for (int p = block.warp; p < count; p += block.warps) {
                const float share = power_of_2(parts[p * size + last] - largest);
                total += share;
                sum += share * parts[p * size + at];
            }
        }
        shared[own] = largest;
        shared[all + own] = total;
        shared[2 * all + own] = sum;
        block.sync();
        if (block.warp > 0 || at >= size) return;
        for (int w = 1; w < block.warps; ++w) largest = fmaxf(largest, shared[w * Block::kLanes + block.lane]);
        total = sum = 0;
        for (int w = 0; w < block.warps; ++w) {
            const int i = w * Block::kLanes + block.lane;
            const float share = power_of_2(shared[i] - largest);
            total += share * shared[all + i];
            sum += share * shared[2 * all + i];
        }
        if (total == 0) total = 1;
        out[at] = at == last ? (largest + log_2(total)) * kLn2 : sum / total;
    }
};

template <int D, int SC>
TILE_BOTH constexpr int shared_of_parts(int team, int otherwise)
{
    const int part = team * SC * (D + 1) * 4;
    return part > otherwise ? part : otherwise;
}

/// Adds the points' noise to logits, and divides them by the points' temperatures. Slices (from s on) are rows, points
/// (from n on) columns.
template <class Tile, class T>
TILE_FN void scale_columns_by_temperature(const Tile& tile, typename Tile::Acc& logits, const Points<T>& points, int h,
                                          std::int64_t n, int s)
{
    TILE_UNROLL
    for (int c = 0; c < Tile::kCols; ++c) {
        const std::int64_t point = n + tile.col(c);
        if (point >= points.count) continue;
        const float inverse_temperature = points.inverse_temperature[h * points.padded + point];
        TILE_UNROLL
        for (int r = 0; r < Tile::kRows; ++r) {
            const int slice = s + tile.row(r);
            const float noise = points.noise && slice < points.num_slices
                                    ? points.noise[(point * points.heads + h) * points.num_slices + slice] * kLog2E
                                    : 0.0f;
            logits.v[r][c] = (logits.v[r][c] + noise) * inverse_temperature;
        }
    }
}

/// `scale_columns_by_temperature` for points as rows and slices as columns.
template <class Tile, class T>
TILE_FN void scale_rows_by_temperature(const Tile& tile, typename Tile::Acc& logits, const Points<T>& points, int h,
                                       std::int64_t n, int s)
{
    TILE_UNROLL
    for (int r = 0; r < Tile::kRows; ++r) {
        const std::int64_t point = n + tile.row(r);
        if (point >= points.count) continue;
        const float inverse_temperature = points.inverse_temperature[h * points.padded + point];
        TILE_UNROLL
        for (int c = 0; c < Tile::kCols; ++c) {
            const int slice = s + tile.col(c);
            const float noise = points.noise && slice < points.num_slices
                                    ? points.noise[(point * points.heads + h) * points.num_slices + slice] * kLog2E
                                    : 0.0f;
            logits.v[r][c] = (logits.v[r][c] + noise) * inverse_temperature;
        }
    }
}

/// Loads the rows of one array as left factors.
template <class Tile, int D, int P>
TILE_FN void load_left(const Tile& tile, typename Tile::A (&to)[P][D / 16], const typename Tile::T* rows)
{
    TILE_UNROLL
    for (int p = 0; p < P; ++p) {
        TILE_UNROLL
        for (int k = 0; k < D / 16; ++k)
            to[p][k] = tile.load_a(rows + 16 * p * kLine<typename Tile::T, D> + k * 16, kLine<typename Tile::T, D>);
    }
}

/// Rows of an array as left factors: kept in registers, or loaded again each time if there are too few registers.
template <class Tile, int D, int P, bool Hold>
struct LeftRows {
    using T = typename Tile::T;
    typename Tile::A held[Hold ? P : 1][Hold ? D / 16 : 1];
    const T* rows;

    TILE_FN LeftRows(const Tile& tile, const T* from) : rows(from)
    {
        if constexpr (Hold) load_left<Tile, D, P>(tile, held, from);
    }
    TILE_FN typename Tile::A at(const Tile& tile, int p, int k) const
    {
        if constexpr (Hold)
            return held[p][k];
        else
            return tile.load_a(rows + 16 * p * kLine<T, D> + k * 16, kLine<T, D>);
    }
};

/// The logits of 16 P points (rows, from n on) and 16 slices (from s on, with their tables at `table` and `bias`).
template <class Tile, int D, int P, bool Hold, bool Warm, class T>
TILE_FN void logits_of(const Tile& tile, typename Tile::Acc (&l)[P], const LeftRows<Tile, D, P, Hold>& x,
                       const T* table, const float* bias, const Points<T>& points, int h, std::int64_t n, int s)
{
    if (!Hold) tile.forget();
    float of_cols[Tile::kCols];
    tile.load_cols(of_cols, bias);
    TILE_UNROLL
    for (int p = 0; p < P; ++p) {
        TILE_UNROLL
        for (int r = 0; r < Tile::kRows; ++r) {
            TILE_UNROLL
            for (int c = 0; c < Tile::kCols; ++c) l[p].v[r][c] = of_cols[c];
        }
    }
    TILE_UNROLL
    for (int k = 0; k < D / 16; ++k) {
        const auto right = tile.load_b(table + k * 16, kLine<T, D>);
        TILE_UNROLL
        for (int p = 0; p < P; ++p) tile.mma(l[p], x.at(tile, p, k), right);
    }
    if (Warm) {
        TILE_UNROLL
        for (int p = 0; p < P; ++p) scale_rows_by_temperature(tile, l[p], points, h, n + 16 * p, s);
    }
}

}  // namespace meshard::tiles
