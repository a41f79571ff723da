// SPDX-License-Identifier: Apache-2.0
// What an `Executor` computes by its `Launcher`, which whoever includes this names.

namespace meshard {

using namespace tiles;

void sum_in_slices(const Executor& executor, const TilePoints& points, const TileRows& values, bool find_log_sums,
                   float* sums)
{
    by_math(points.math, [&](auto math_type) {
        sum_in_slices_by<decltype(math_type)::value>(Launcher(executor), points, values, find_log_sums, sums);
    });
}

void find_log_sums(const Executor& executor, const TilePoints& points)
{
    by_math(points.math,
            [&](auto math_type) { find_log_sums_by<decltype(math_type)::value>(Launcher(executor), points); });
}

void find_point_means(const Executor& executor, const TilePoints& points, const TileRows& values, float* means)
{
    by_math(points.math, [&](auto math_type) {
        find_point_means_by<decltype(math_type)::value>(Launcher(executor), points, values, means);
    });
}

void deslice_rows(const Executor& executor, const TilePoints& points, const float* states, const TileRows& y)
{
    by_math(points.math, [&](auto math_type) {
        bring_from_slices_by<decltype(math_type)::value>(Launcher(executor), points, states, y);
    });
}

void find_slice_gradients(const Executor& executor, const TilePoints& points, const TileGradients& gradients,
                          float* slice_gradients)
{
    by_math(points.math, [&](auto math_type) {
        find_slice_gradients_by<decltype(math_type)::value>(Launcher(executor), points, gradients, slice_gradients);
    });
}

void round_totals(const Executor& executor, TileMath math, const float* states, const float* sums,
                  const float* state_gradients, float* sums_gradient, std::int64_t slices, int head_dim)
{
    by_math(math, [&](auto math_type) {
        round_totals_by<decltype(math_type)::value>(Launcher(executor), states, sums, state_gradients, sums_gradient,
                                                    slices, head_dim);
    });
}

void fold_weights(const Executor& executor, const FoldedWeights& weights)
{
    fold_weights_by(Launcher(executor), weights);
}

void unfold_weights(const Executor& executor, const UnfoldedWeights& weights)
{
    unfold_weights_by(Launcher(executor), weights);
}

void scale_slices(const Executor& executor, const SliceScaling& of, float* scaled, float* scaled_bias)
{
    executor.for_each(of.heads * of.slices * (of.dim + 1), ScaleSlices{of, scaled, scaled_bias});
}

void scale_slices_backward(const Executor& executor, const SliceScaling& of, const SliceScalingGradient& gradient)
{
    scale_slices_backward_by(Launcher(executor), of, gradient);
}

void find_slice_means(const Executor& executor, const SliceTotals& s)
{
    executor.for_each(s.slices * s.dim, SliceMeans{s.sums, s.tokens, s.dim, s.epsilon});
}

void slice_means_backward(const Executor& executor, const SliceTotals& s, const float* tokens_gradient,
                          float* sums_gradient)
{
    executor.for_each(s.slices, SliceMeansBackward{s.sums, s.tokens, tokens_gradient, sums_gradient, s.dim, s.epsilon});
}

bool tokens_fit(const Executor& executor, int count, int dim)
{
    return tokens_fit_by(Launcher(executor), count, dim);
}

void attend_tokens(const Executor& executor, const TokenAttention& of, float* states)
{
    attend_tokens_by(Launcher(executor), of, states);
}

void attend_tokens_backward(const Executor& executor, const TokenAttention& of, const TokenAttentionGradient& gradient)
{
    attend_tokens_backward_by(Launcher(executor), of, gradient);
}

}  // namespace meshard
