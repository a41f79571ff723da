// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tile_launch_host.h"

namespace meshard {

using namespace tiles;

void sum_in_slices(const HostExecutor& executor, const TilePoints& points, const TileRows& values, bool find_log_sums,
                   float* sums)
{
    by_math(points.math, [&](auto math_type) {
        sum_in_slices_by<decltype(math_type)::value>(HostLauncher(executor), points, values, find_log_sums, sums);
    });
}

void find_log_sums(const HostExecutor& executor, const TilePoints& points)
{
    by_math(points.math,
            [&](auto math_type) { find_log_sums_by<decltype(math_type)::value>(HostLauncher(executor), points); });
}

void find_point_means(const HostExecutor& executor, const TilePoints& points, const TileRows& values, float* means)
{
    by_math(points.math, [&](auto math_type) {
        find_point_means_by<decltype(math_type)::value>(HostLauncher(executor), points, values, means);
    });
}

void deslice_rows(const HostExecutor& executor, const TilePoints& points, const float* states, const TileRows& y)
{
    by_math(points.math, [&](auto math_type) {
        bring_from_slices_by<decltype(math_type)::value>(HostLauncher(executor), points, states, y);
    });
}

void find_slice_gradients(const HostExecutor& executor, const TilePoints& points, const TileGradients& gradients,
                          float* slice_gradients)
{
    by_math(points.math, [&](auto math_type) {
        find_slice_gradients_by<decltype(math_type)::value>(HostLauncher(executor), points, gradients, slice_gradients);
    });
}

void round_totals(const HostExecutor& executor, TileMath math, const float* states, const float* sums,
                  const float* state_gradients, float* sums_gradient, std::int64_t slices, int head_dim)
{
    by_math(math, [&](auto math_type) {
        round_totals_by<decltype(math_type)::value>(HostLauncher(executor), states, sums, state_gradients,
                                                    sums_gradient, slices, head_dim);
    });
}

void normalize_rows(const HostExecutor& executor, const NormalizedRows& rows)
{
    normalize_rows_by(HostLauncher(executor), rows);
}

void normalize_rows_backward(const HostExecutor& executor, const NormalizedRowsGradient& rows)
{
    normalize_rows_backward_by(HostLauncher(executor), rows);
}

void gelu_rows(const HostExecutor& executor, RowType type, const void* x, void* y, std::int64_t count)
{
    gelu_rows_by(HostLauncher(executor), type, x, y, count);
}

void gelu_rows_backward(const HostExecutor& executor, const GeluGradient& rows)
{
    gelu_rows_backward_by(HostLauncher(executor), rows);
}

void sum_rows(const HostExecutor& executor, RowType type, const void* x, void* sums, std::int64_t rows,
              std::int64_t channels)
{
    with_rows(type, 1, [&](auto number, auto) {
        sum_rows_by<decltype(number)>(HostLauncher(executor), x, sums, rows, channels);
    });
}

void fold_weights(const HostExecutor& executor, const FoldedWeights& weights)
{
    fold_weights_by(HostLauncher(executor), weights);
}

void unfold_weights(const HostExecutor& executor, const UnfoldedWeights& weights)
{
    unfold_weights_by(HostLauncher(executor), weights);
}

void scale_slices(const HostExecutor& executor, const SliceScaling& of, float* scaled, float* scaled_bias)
{
    executor.for_each(of.heads * of.slices * (of.dim + 1), ScaleSlices{of, scaled, scaled_bias});
}

void scale_slices_backward(const HostExecutor& executor, const SliceScaling& of, const SliceScalingGradient& gradient)
{
    scale_slices_backward_by(HostLauncher(executor), of, gradient);
}

void find_slice_means(const HostExecutor& executor, const SliceTotals& s)
{
    executor.for_each(s.slices * s.dim, SliceMeans{s.sums, s.tokens, s.dim, s.epsilon});
}

void slice_means_backward(const HostExecutor& executor, const SliceTotals& s, const float* tokens_gradient,
                          float* sums_gradient)
{
    executor.for_each(s.slices, SliceMeansBackward{s.sums, s.tokens, tokens_gradient, sums_gradient, s.dim, s.epsilon});
}

bool tokens_fit(const HostExecutor& executor, int count, int dim)
{
    return tokens_fit_by(HostLauncher(executor), count, dim);
}

void attend_tokens(const HostExecutor& executor, const TokenAttention& of, float* states)
{
    attend_tokens_by(HostLauncher(executor), of, states);
}

void attend_tokens_backward(const HostExecutor& executor, const TokenAttention& of,
                            const TokenAttentionGradient& gradient)
{
    attend_tokens_backward_by(HostLauncher(executor), of, gradient);
}

}  // namespace meshard
