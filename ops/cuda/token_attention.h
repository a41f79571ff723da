// SPDX-License-Identifier: Apache-2.0
// Attention of the tokens of a head among each other, softmax(q k^T / sqrt(D)) v with q, k and v from one projection,
// forward and backward each in one kernel. A block computes a head; its matrices lie in shared memory, padded with
// zeros to multiples of 16 rows and columns. Products are of fp32 (three TF32 products on tensor cores).
#pragma once

#include "ops/cuda/slice_tiles.h"
#include "ops/cuda/tile_kernels.h"

namespace meshard::tiles {

/// tokens = sums / (weights + epsilon) of slices (sums of D values, then of weights), a number for each index.
struct SliceMeans {
    const float* sums;
    float* tokens;
    std::int64_t dim;
    float epsilon;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const float* slice = sums + i / dim * (dim + 1);
        tokens[i] = slice[i % dim] / (slice[dim] + epsilon);
    }
};

/// The gradient of the sums, a slice for each index.
struct SliceMeansBackward {
    const float *sums, *tokens, *tokens_gradient;
    float* sums_gradient;
    std::int64_t dim;
    float epsilon;

    MESHARD_HOST_DEVICE void operator()(std::int64_t slice) const
    {
        const float *of = tokens_gradient + slice * dim, *token = tokens + slice * dim;
        float* to = sums_gradient + slice * (dim + 1);
        const float weight = sums[slice * (dim + 1) + dim] + epsilon;
        float product = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
            to[d] = of[d] / weight;
            product += to[d] * token[d];
        }
        to[dim] = -product;
    }
};

/// A factor of a product in shared memory: rows of the left one, columns of the right one, are `line` numbers apart,
/// and numbers along the inner dimension `step`.
struct Factor {
    const float* at;
    int line, step;
};

/// Calls store(row, column, sum) for all numbers of a product. Each group of 16 x 16 is one warp's, the same one in
/// every product of these sizes.
template <class Tile, class Store>
TILE_FN void multiply(const Tile& tile, const Block& block, int rows, int columns, int inner, const Factor& left,
                      const Factor& right, const Store& store)
{
    const int across = columns / 16;
    for (int i = block.warp; i < rows / 16 * across; i += block.warps) {
        const int row = i / across * 16, column = i % across * 16;
        typename Tile::Acc sum;
        clear<Tile>(sum);
        for (int k = 0; k < inner; k += 16)
            tile.mma(sum, tile.load_a(left.at + row * left.line + k * left.step, left.line, left.step),
                     tile.load_b(right.at + column * right.line + k * right.step, right.line, right.step));
        TILE_UNROLL
        for (int r = 0; r < Tile::kRows; ++r) {
            TILE_UNROLL
            for (int c = 0; c < Tile::kCols; ++c) store(row + tile.row(r), column + tile.col(c), sum.v[r][c]);
        }
    }
}

/// What forward and backward share: matrices of S x D numbers, one of S x S (weights of the softmax), one of D x D (a
/// third of the projection), and S single numbers.
class TokenMatrices {
public:
    TILE_BOTH static int bytes(int count, int dim, int matrices)
    {
        const int rows = padded_slices(count), columns = padded_slices(dim);
        return 4 *
               (matrices * rows * (columns + kApart) + rows * (rows + kApart) + columns * (columns + kApart) + rows);
    }

    TILE_FN TokenMatrices(const Block& block, const TokenAttention& of, int matrices)
        : memory_(reinterpret_cast<float*>(block.shared)), of_(of), rows(padded_slices(of.count)),
          columns(padded_slices(of.dim)), line(columns + kApart), wide(rows + kApart),
          weights(memory_ + matrices * rows * line), projection(weights + rows * wide),
          numbers(projection + columns * line)
    {
    }

    TILE_FN float* matrix(int i) const { return memory_ + i * rows * line; }

    /// Copies the head's S x D numbers of a tensor (heads, S, D).
    TILE_FN void copy(const Block& block, float* to, const float* all) const
    {
        copy(block, to, all + static_cast<std::int64_t>(block.part) * of_.count * of_.dim, of_.count, rows);
    }
    /// Copies a third of the projection's weight (3 D, D): 0 for queries, 1 for keys, 2 for values.
    TILE_FN void copy_projection(const Block& block, int third) const
    {
        copy(block, projection, of_.weight + third * of_.dim * of_.dim, of_.dim, columns);
    }

    /// Computes tokens (matrix 0), queries, keys and values (1 to 3), and the softmax.
    template <class Tile>
    TILE_FN void compute(const Tile& tile, const Block& block) const
    {
        copy(block, matrix(0), of_.tokens);
        for (int third = 0; third < 3; ++third) {
            copy_projection(block, third);
            block.sync();
            float* to = matrix(1 + third);
            multiply(tile, block, rows, columns, columns, {matrix(0), line, 1}, {projection, line, 1},
                     [&](int r, int c, float sum) { to[r * line + c] = sum; });
            block.sync();
        }
        const float scale = of_.scale * kLog2E;
        multiply(tile, block, rows, rows, columns, {matrix(1), line, 1}, {matrix(2), line, 1},
                 [&](int r, int c, float sum) { weights[r * wide + c] = sum * scale; });
        block.sync();
        for (int row = block.warp; row < rows; row += block.warps) {
            float* logits = weights + row * wide;
            float largest = kNever, sum = 0;
            for (int t = block.lane; t < of_.count; t += Block::kLanes) largest = fmaxf(largest, logits[t]);
            largest = block.max(largest);
            for (int t = block.lane; t < of_.count; t += Block::kLanes) {
                logits[t] = power_of_2(logits[t] - largest);
                sum += logits[t];
            }
            const float inverse = 1 / block.sum(sum);
            for (int t = block.lane; t < rows; t += Block::kLanes) logits[t] = t < of_.count ? logits[t] * inverse : 0;
        }
        block.sync();
    }

private:
    static constexpr int kApart = 4;  // so that threads read different banks, along rows and along columns

    TILE_FN void copy(const Block& block, float* to, const float* from, int count, int padded) const
    {
        block.each(padded * columns, [&](int i) {
            const int r = i / columns, c = i % columns;
            to[r * line + c] = r < count && c < of_.dim ? from[r * of_.dim + c] : 0;
        });
    }

    float* memory_;
    const TokenAttention& of_;

public:
    const int rows, columns;  ///< padded S and D
    const int line, wide;     ///< numbers from one row to the next of S x D and D x D, and of S x S
    float *const weights, *const projection, *const numbers;
};

template <class Tile>
struct AttendTokens {
    static constexpr int kMatrices = 4;
    TokenAttention of;
    float* states;  ///< (heads, S, D)

    TILE_FN void operator()(const Block& block) const
    {
        Tile tile;
        tile.lane = block.lane;
        const TokenMatrices m(block, of, kMatrices);
        m.compute(tile, block);
        float* to = states + static_cast<std::int64_t>(block.part) * of.count * of.dim;
        multiply(tile, block, m.rows, m.columns, m.rows, {m.weights, m.wide, 1}, {m.matrix(3), 1, m.line},
                 [&](int r, int c, float sum) {
                     if (r < of.count && c < of.dim) to[r * of.dim + c] = sum;
                 });
    }
};

template <class Tile>
struct AttendTokensBackward {
    static constexpr int kMatrices = 6;
    TokenAttention of;
    TokenAttentionGradient gradient;
    float* weight_parts;  ///< (heads, 3 D, D)

    TILE_FN void operator()(const Block& block) const
    {
        Tile tile;
        tile.lane = block.lane;
        const TokenMatrices m(block, of, kMatrices);
        m.compute(tile, block);
        const int S = m.rows, D = m.columns, line = m.line, wide = m.wide;
        const auto head = static_cast<std::int64_t>(block.part);
        float *tokens = m.matrix(0), *queries = m.matrix(1), *keys = m.matrix(2), *values = m.matrix(3),
              *of_states = m.matrix(4), *of_values = m.matrix(5);
        m.copy(block, of_states, gradient.states_gradient);
        block.sync();
        // The mean over a row's weights of their gradients is the product of the row's states and their gradient.
        const float* states = gradient.states + head * of.count * of.dim;
        for (int r = block.warp; r < S; r += block.warps) {
            float sum = 0;
            for (int d = block.lane; d < of.dim && r < of.count; d += Block::kLanes)
                sum += of_states[r * line + d] * states[r * of.dim + d];
            sum = block.sum(sum);
            if (block.lane == 0) m.numbers[r] = sum;
        }
        multiply(tile, block, S, D, S, {m.weights, 1, wide}, {of_states, 1, line},
                 [&](int r, int c, float sum) { of_values[r * line + c] = sum; });
        block.sync();
        // Gradients of the logits, in the place of the weights.
        multiply(tile, block, S, S, D, {of_states, line, 1}, {values, line, 1}, [&](int r, int c, float sum) {
            float& weight = m.weights[r * wide + c];
            weight *= (sum - m.numbers[r]) * of.scale;
        });
        block.sync();
        float *of_queries = of_states, *of_keys = values;
        multiply(tile, block, S, D, S, {m.weights, wide, 1}, {keys, 1, line},
                 [&](int r, int c, float sum) { of_queries[r * line + c] = sum; });
        multiply(tile, block, S, D, S, {m.weights, 1, wide}, {queries, 1, line},
                 [&](int r, int c, float sum) { of_keys[r * line + c] = sum; });
        block.sync();
        float *of_tokens = keys, *result = gradient.tokens_gradient + head * of.count * of.dim;
        for (int third = 0; third < 3; ++third) {
            const float* of_third = third == 0 ? of_queries : third == 1 ? of_keys : of_values;
            m.copy_projection(block, third);
            block.sync();
            multiply(tile, block, S, D, D, {of_third, line, 1}, {m.projection, 1, line}, [&](int r, int c, float sum) {
                float& total = of_tokens[r * line + c];
                total = third == 0 ? sum : total + sum;
                if (third == 2 && r < of.count && c < of.dim) result[r * of.dim + c] = total;
            });
            float* part = weight_parts + (head * 3 + third) * of.dim * of.dim;
            multiply(tile, block, D, D, S, {of_third, 1, line}, {tokens, 1, line}, [&](int r, int c, float sum) {
                if (r < of.dim && c < of.dim) part[r * of.dim + c] = sum;
            });
            block.sync();
        }
    }
};

}  // namespace meshard::tiles
