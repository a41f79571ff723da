// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tile_launch_cuda.h"

namespace meshard {

using namespace tiles;

void normalize_rows(const CudaExecutor& executor, const NormalizedRows& rows)
{
    normalize_rows_by(CudaLauncher(executor), rows);
}

void normalize_rows_backward(const CudaExecutor& executor, const NormalizedRowsGradient& rows)
{
    normalize_rows_backward_by(CudaLauncher(executor), rows);
}

void gelu_rows(const CudaExecutor& executor, RowType type, const void* x, void* y, std::int64_t count)
{
    gelu_rows_by(CudaLauncher(executor), type, x, y, count);
}

void gelu_rows_backward(const CudaExecutor& executor, const GeluGradient& rows)
{
    gelu_rows_backward_by(CudaLauncher(executor), rows);
}

void sum_rows(const CudaExecutor& executor, RowType type, const void* x, void* sums, std::int64_t rows,
              std::int64_t channels)
{
    with_rows(type, 1, [&](auto number, auto) {
        sum_rows_by<decltype(number)>(CudaLauncher(executor), x, sums, rows, channels);
    });
}

}  // namespace meshard
