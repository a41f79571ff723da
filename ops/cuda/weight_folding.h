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

/// The number by which a head's slices are multiplied.
MESHARD_HOST_DEVICE inline float slice_factor(const SliceScaling& of, std::int64_t head)
{
    const float t = of.temperature[head];
    return 1 / (t < of.least ? of.least : t > of.most ? of.most : t);
}

/// A number of a slice's weight, then of its bias, for each index.
struct ScaleSlices {
    SliceScaling of;
    float *scaled, *scaled_bias;

    MESHARD_HOST_DEVICE void operator()(std::int64_t i) const
    {
        const auto weights = of.slices * of.dim, head = i / (weights + of.slices), at = i % (weights + of.slices);
        const float factor = slice_factor(of, head);
        if (at < weights)
            scaled[head * weights + at] = of.weight[at] * factor;
        else
            scaled_bias[head * of.slices + at - weights] = of.bias[at - weights] * factor;
    }
};

/// A block for the temperature of each head, then blocks for a thread's number of weight or bias.
struct ScaleSlicesBackward {
    SliceScaling of;
    SliceScalingGradient gradient;

    TILE_FN void operator()(const Block& block) const
    {
        const auto weights = of.slices * of.dim;
        const int threads = block.warps * Block::kLanes, thread = block.warp * Block::kLanes + block.lane;
        if (block.part >= of.heads) {
            const auto at = (block.part - of.heads) * threads + thread;
            if (at >= weights + of.slices) return;
            float sum = 0;
            for (std::int64_t h = 0; h < of.heads; ++h)
                sum += slice_factor(of, h) * (at < weights ? gradient.scaled[h * weights + at]
                                                           : gradient.scaled_bias[h * of.slices + at - weights]);
            (at < weights ? gradient.weight[at] : gradient.bias[at - weights]) = sum;
            return;
        }
        const std::int64_t head = block.part;
        float sum = 0;
        for (std::int64_t i = thread; i < weights; i += threads)
            sum += gradient.scaled[head * weights + i] * of.weight[i];
        for (std::int64_t i = thread; i < of.slices; i += threads)
            sum += gradient.scaled_bias[head * of.slices + i] * of.bias[i];
        sum = block.sum(sum);
        auto* sums = reinterpret_cast<float*>(block.shared);
        if (block.lane == 0) sums[block.warp] = sum;
        block.sync();
        if (thread > 0) return;
        for (int w = 1; w < block.warps; ++w) sum += sums[w];
        const float t = of.temperature[head], factor = slice_factor(of, head);
        gradient.temperature[head] = t < of.least || t > of.most ? 0 : -factor * factor * sum;
    }
};

}  // namespace meshard::tiles
