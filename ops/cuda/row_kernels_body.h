// SPDX-License-Identifier: Apache-2.0
// What an `Executor` computes of rows by its `Launcher`, which whoever includes this names.

namespace meshard {

using namespace tiles;

void normalize_rows(const Executor& executor, const NormalizedRows& rows)
{
    normalize_rows_by(Launcher(executor), rows);
}

void normalize_rows_backward(const Executor& executor, const NormalizedRowsGradient& rows)
{
    normalize_rows_backward_by(Launcher(executor), rows);
}

void gelu_rows(const Executor& executor, RowType type, const void* x, void* y, std::int64_t count)
{
    gelu_rows_by(Launcher(executor), type, x, y, count);
}

void gelu_rows_backward(const Executor& executor, const GeluGradient& rows)
{
    gelu_rows_backward_by(Launcher(executor), rows);
}

void sum_rows(const Executor& executor, RowType type, const void* x, void* sums, std::int64_t rows,
              std::int64_t channels)
{
    with_rows(type, 1,
              [&](auto number, auto) { sum_rows_by<decltype(number)>(Launcher(executor), x, sums, rows, channels); });
}

}  // namespace meshard
