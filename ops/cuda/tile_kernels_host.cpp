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

}  // namespace meshard
