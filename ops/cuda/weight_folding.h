// SPDX-License-Identifier: Apache-2.0
// Weights of the products of a block, all in one kernel: scale and shift of the norm before a product folded into its
// weight and bias, conversion to the points' type, and the gradients through both.
#pragma once

#include "ops/cuda/row_tiles.h"
#include "ops/cuda/tile_kernels.h"

namespace meshard::tiles {

/// A warp for each row of a product's result.
template <class T>
struct FoldWeights {
    FoldedWeights all;

    TILE_FN void operator()(const Block& block) const
    {
        const std::int64_t step = static_cast<std::int64_t>(block.parts) * block.warps;
        for (std::int64_t at = static_cast<std::int64_t>(block.part) * block.warps + block.warp; at < all.num_rows();
             at += step) {
            std::int64_t row = at;
            int i = 0;
            while (row >= all.products[i].rows) row -= all.products[i++].rows;
            fold(block, all.products[i], row);
        }
    }

private:
    using N = Number<T>;

    TILE_FN static void fold(const Block& block, const FoldedProduct& product, std::int64_t row)
    {
        const auto *weight = static_cast<const N*>(product.weight) + row * product.columns,
                   *scale = static_cast<const N*>(product.scale), *shift = static_cast<const N*>(product.shift);
        auto* to = static_cast<T*>(product.folded) + row * product.columns;
        N sum = 0;
        for (std::int64_t c = block.lane; c < product.columns; c += Block::kLanes) {
            const N w = weight[c];
            assign(to[c], scale ? w * scale[c] : w);
            if (shift) sum += w * shift[c];
        }
        if (!product.bias) return;
        sum = block.sum(sum);
        if (block.lane == 0)
            assign(static_cast<T*>(product.folded_bias)[row], static_cast<const N*>(product.bias)[row] + sum);
    }
};

/// A block for each group of columns, whose threads divide the rows; their sums are added in order.
template <class N>
struct UnfoldWeights {
    UnfoldedWeights all;
    int width;  ///< columns of a group

    TILE_BOTH static constexpr int width_for(int threads) { return threads < 8 ? threads : 8; }
    TILE_BOTH static std::int64_t groups(const UnfoldedProduct& product, int width)
    {
        return (product.columns + width - 1) / width;
    }

    TILE_FN void operator()(const Block& block) const
    {
        std::int64_t group = block.part;
        int i = 0;
        while (group >= groups(all.products[i], width)) group -= groups(all.products[i++], width);
        unfold(block, all.products[i], group * width);
    }

private:
    TILE_FN void unfold(const Block& block, const UnfoldedProduct& product, std::int64_t first) const
    {
        const int thread = block.warp * Block::kLanes + block.lane, abreast = block.warps * Block::kLanes / width,
                  slot = thread / width;
        const std::int64_t c = first + thread % width, columns = product.columns;
        const bool is_there = c < columns && slot < abreast;
        N of_scale = 0, of_shift = 0;
        if (is_there) {
            const N scale = static_cast<const N*>(product.scale)[c], shift = static_cast<const N*>(product.shift)[c];
            for (int s = 0; s < product.sources; ++s) {
                const auto* weight = static_cast<const N*>(product.weights[s]);
                auto* weight_gradient = static_cast<N*>(product.weight_gradients[s]);
                const auto *gradient = static_cast<const N*>(product.gradient) + s * product.rows * columns,
                           *bias_gradient = static_cast<const N*>(product.bias_gradient) + s * product.rows;
#ifdef __CUDACC__
#pragma unroll 4
#endif
                for (std::int64_t row = slot; row < product.rows; row += abreast) {
                    const N g = gradient[row * columns + c], b = bias_gradient[row], w = weight[row * columns + c];
                    weight_gradient[row * columns + c] = g * scale + b * shift;
                    of_scale += g * w;
                    of_shift += b * w;
                }
            }
        }
        auto* sums = reinterpret_cast<N*>(block.shared);
        sums[2 * thread] = of_scale;
        sums[2 * thread + 1] = of_shift;
        block.sync();
        if (!is_there || slot > 0) return;
        for (int other = 1; other < abreast; ++other) {
            of_scale += sums[2 * (other * width + thread)];
            of_shift += sums[2 * (other * width + thread) + 1];
        }
        static_cast<N*>(product.scale_gradient)[c] = of_scale;
        static_cast<N*>(product.shift_gradient)[c] = of_shift;
    }
};

}  // namespace meshard::tiles
