// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/cuda/device_executor.h"
#include "ops/cuda/tile_math.h"

#include <cstdint>

namespace meshard {

// Kernels of slice attention on tensor cores (slice_tiles.h), and of the rows between its products (row_tiles.h). Each
// function is one pass over the points, and a small second kernel if sums of the blocks are added, in a fixed order.
// Each exists for a GPU and for the host, which runs the same source.

/// Rows of points in memory: (points, channels), `stride` numbers from one row to the next, aligned to 16 bytes.
struct TileRows {
    void* rows;
    std::int64_t stride;
};

/// Slice attention of the points of one sample. The weights of a point, a softmax over slices, are computed again from
/// `log_sums` in each pass:
///
///     w[n, h, s] = softmax over s of inverse_temperature[h, n] (x[n, h, :] . slices[h, s, :] + bias[h, s] +
///                                                               noise[n, h, s])
struct TilePoints {
    TileMath math;
    TileRows x;                        ///< (points, H D)
    const float* slices;               ///< (H, S, D)
    const float* bias;                 ///< (H, S)
    const float* inverse_temperature;  ///< (H, padded points): inverse temperatures of points; null: 1
    const float* noise;                ///< (points, H, S), only with `inverse_temperature`; null: 0
    float* log_sums;                   ///< (H, padded points), base 2
    std::int64_t count;
    int heads, num_slices, head_dim;  ///< head_dim: a multiple of 8, at most kMaxTileHead
};

inline constexpr int kMaxTileHead = 128, kMaxWarmTileHead = 64;  // kMaxWarmTileHead applies with `inverse_temperature`

/// Number of points in one row of `log_sums` and `inverse_temperature`.
constexpr std::int64_t padded_points(std::int64_t count)
{
    return (count + 31) / 32 * 32;
}

struct TileGradients {
    const float* states;            ///< (H, S, D)
    const float* sums_gradient;     ///< (H, S, D + 1)
    TileRows features, y_gradient;  ///< (points, H D)
    TileRows x_gradient, features_gradient;
    float* warmth_gradient;  ///< (H, padded points); null if points have no temperatures
    /// (H, S, D + 1), the result of `find_point_means`, whose gradient `sums_gradient` is (in its last column that of
    /// the logarithms); null: that of sums.
    const float* point_means = nullptr;
};

/// The type of the numbers in rows.
enum class RowType : std::uint8_t { Bfloat16, Float16, Float32, Float64 };

/// x_hat = (x + add + bias - mean) / deviation of each row, in fp32 (in double for Float64, where `float` below means
/// double).
struct NormalizedRows {
    RowType type;
    const void* x;
    const void* add;    ///< null: 0
    const void* bias;   ///< (channels), float; null: 0
    const void* after;  ///< (channels), float: added only to `sum`; null: 0
    void* sum;          ///< x + add + bias + after; null: not stored
    void* x_hat;
    void* scales;  ///< (rows), float: 1 / deviation; null: not stored
    std::int64_t rows, channels;
    double epsilon;
};

/// result = before + gradient of x, given the gradient of x_hat.
struct NormalizedRowsGradient {
    RowType type;
    const void* gradient;  ///< gradient of x_hat
    const void* x_hat;
    const void* scales;
    const void* before;  ///< null: 0
    void* result;        ///< may be `gradient` or `before`
    void* before_sums;   ///< (channels), float: sums of `before` over the rows; null: not computed
    void* result_sums;   ///< (channels), float; null: not computed
    std::int64_t rows, channels;
};

struct GeluGradient {
    RowType type;
    const void* x;
    void* gradient;  ///< gradient of gelu(x); overwritten by that of x
    void* y;         ///< gelu(x), computed again; null: not computed
    void* sums;      ///< (channels), float: sums of the gradient over the rows
    std::int64_t rows, channels;
};

/// The weight and bias of a product in the points' type, with scale and shift of the norm before it folded in:
/// W diag(scale), b + W shift. Numbers are float, for Float64 double.
struct FoldedProduct {
    const void *weight, *bias;   ///< (rows, columns), (rows); bias null: none
    const void *scale, *shift;   ///< (columns), null: no norm
    void *folded, *folded_bias;  ///< (rows, columns), (rows), of the points' type
    std::int64_t rows, columns;
};

struct FoldedWeights {
    static constexpr int kMost = 6;
    RowType type;
    FoldedProduct products[kMost];
    int count;

    MESHARD_HOST_DEVICE std::int64_t num_rows() const
    {
        std::int64_t rows = 0;
        for (int i = 0; i < count; ++i) rows += products[i].rows;
        return rows;
    }
};

/// The gradients of a product and of the norm before it, from those of the folded weight and bias. A product may have
/// two weights of as many rows, one below the other.
struct UnfoldedProduct {
    const void *gradient, *bias_gradient;  ///< (sources rows, columns), (sources rows)
    const void *scale, *shift;             ///< (columns)
    const void* weights[2];                ///< (rows, columns)
    void* weight_gradients[2];
    void *scale_gradient, *shift_gradient;  ///< (columns)
    int sources;
    std::int64_t rows, columns;
};

struct UnfoldedWeights {
    static constexpr int kMost = 3;
    RowType type;
    UnfoldedProduct products[kMost];
    int count;
};

/// Weight and bias of slices' logits, the same for all heads but divided by each head's temperature within bounds.
struct SliceScaling {
    const float *weight, *bias, *temperature;  ///< (slices, dim), (slices), (heads)
    float least, most;
    std::int64_t heads, slices, dim;
};

struct SliceScalingGradient {
    const float *scaled, *scaled_bias;   ///< gradients of the results: (heads, slices, dim), (heads, slices)
    float *weight, *bias, *temperature;  ///< results, like the inputs
};

/// Slices' sums (slices, dim + 1): weighted values, then weights; and their means over the points.
struct SliceTotals {
    const float* sums;
    float* tokens;  ///< (slices, dim): sums / (weights + epsilon)
    std::int64_t slices, dim;
    float epsilon;
};

inline constexpr int kMostTokens = 128;  // one block computes a head

/// Attention of `count` tokens of `dim` numbers in each head: softmax(scale q k^T) v, q, k and v from one projection.
struct TokenAttention {
    const float *tokens, *weight;  ///< (heads, count, dim), (3 dim, dim)
    int heads, count, dim;
    float scale;
};

struct TokenAttentionGradient {
    const float *states, *states_gradient;  ///< (heads, count, dim): the result, and its gradient
    float *tokens_gradient, *weight_gradient;
};

#define MESHARD_TILE_FUNCTIONS(Executor, END)                                                                          \
    /* sums (H, S, D + 1) of weighted values, then weights; finds log_sums first, or takes them. */                    \
    void sum_in_slices(const Executor&, const TilePoints&, const TileRows& values, bool find_log_sums,                 \
                        float* sums) END                                                                               \
    void find_log_sums(const Executor&, const TilePoints&) END                                                         \
    /* Means of values for each slice, weighted by a softmax over points of their logits, then logarithms of the sums  \
     * of exponentials: (H, S, D + 1). Finds log_sums, too. */                                                         \
    void find_point_means(const Executor&, const TilePoints&, const TileRows& values, float* means) END                \
    /* y[n, h, :] = sum over s of w[n, h, s] states[h, s, :] */                                                        \
    void deslice_rows(const Executor&, const TilePoints&, const float* states, const TileRows& y) END                  \
    /* Gradients of points, and of slices and their bias together: (H, S, D + 1). */                                   \
    void find_slice_gradients(const Executor&, const TilePoints&, const TileGradients&, float* slice_gradients) END    \
    /* Adds to the totals' column of sums_gradient (H, S, D + 1) what rounding states and sums_gradient in products    \
     * does to the gradients of weights, on */                                                                         \
    /* average over a slice's points. Otherwise it adds up in the gradients of slices and bias, which then are off by  \
     * up to 30 %. */                                                                                                  \
    void round_totals(const Executor&, TileMath, const float* states, const float* sums, const float* state_gradients, \
                      float* sums_gradient, std::int64_t slices, int head_dim) END                                     \
    void normalize_rows(const Executor&, const NormalizedRows&) END                                                    \
    void normalize_rows_backward(const Executor&, const NormalizedRowsGradient&) END                                   \
    /* y = gelu(x), exactly (erf); may be in place */                                                                  \
    void gelu_rows(const Executor&, RowType, const void* x, void* y, std::int64_t count) END                           \
    void gelu_rows_backward(const Executor&, const GeluGradient&) END                                                  \
    /* sums over the rows */                                                                                           \
    void sum_rows(const Executor&, RowType, const void* x, void* sums, std::int64_t rows, std::int64_t channels) END   \
    void fold_weights(const Executor&, const FoldedWeights&) END                                                       \
    void unfold_weights(const Executor&, const UnfoldedWeights&) END                                                   \
    void scale_slices(const Executor&, const SliceScaling&, float* scaled, float* scaled_bias) END                     \
    void scale_slices_backward(const Executor&, const SliceScaling&, const SliceScalingGradient&) END                  \
    void find_slice_means(const Executor&, const SliceTotals&) END                                                     \
    void slice_means_backward(const Executor&, const SliceTotals&, const float* tokens_gradient,                       \
                              float* sums_gradient) END                                                                \
    /* Whether a block's shared memory holds the matrices of a head. */                                                \
    bool tokens_fit(const Executor&, int count, int dim) END                                                           \
    void attend_tokens(const Executor&, const TokenAttention&, float* states) END                                      \
    void attend_tokens_backward(const Executor&, const TokenAttention&, const TokenAttentionGradient&) END

MESHARD_TILE_FUNCTIONS(CudaExecutor, ;)
MESHARD_TILE_FUNCTIONS(HostExecutor, ;)

}  // namespace meshard
