// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tile_launch_host.h"

namespace meshard {

using namespace tiles;

using Executor = HostExecutor;
using Launcher = HostLauncher;

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

#include "ops/cuda/tile_kernels_body.h"
