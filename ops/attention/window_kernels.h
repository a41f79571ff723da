// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// `num_queries` adjacent queries of one row of a grid, each of which attends to a window of `rows` x `columns` keys.
///
/// Tensors of keys (keys, values, their gradients) have a row of numbers for each channel of each row of the grid, so
/// that adjacent numbers belong to adjacent columns: entry (row, channel, column) is at row * row_stride + channel *
/// channel_stride + column, relative to the first key of the first query. Tensors of queries are (channels,
/// num_queries), weights are (rows * columns, num_queries).
struct WindowBlock {
    std::int64_t num_queries = 0;  ///< a multiple of the kernels' lanes; padding queries are zero
    std::int64_t rows = 0, columns = 0, channels = 0;
    std::int64_t row_stride = 0, channel_stride = 0;
    /// All queries attend to the same keys, as at a border; otherwise the window moves by one column from a query to
    /// the next.
    bool shared = false;
};

/// The inner loops of neighbourhood attention for one instruction set. Keys must be readable `lanes` numbers beyond the
/// last one used.
template <class T>
struct WindowKernels {
    std::int64_t lanes = 0;

    /// weights[(r, c), t] = sum over channels of queries[channel, t] * key[r, channel, c + t], or key[r, channel, c] in
    /// shared blocks.
    void (*scores)(const WindowBlock& block, const T* queries, const T* keys, T* weights) = nullptr;

    /// output[channel, t] = sum over (r, c) of weights[(r, c), t] * value[r, channel, c + t], or value[r, channel, c]
    /// in shared blocks.
    void (*mix)(const WindowBlock& block, const T* weights, const T* values, T* output) = nullptr;

    /// gradient[r, channel, c + t] += sum over t of weights[(r, c), t] * x[channel, t], for blocks that are not shared.
    /// Rows of x have `x_stride` numbers and are preceded and followed by columns + lanes zeros; weights must be finite
    /// in the same margins.
    void (*spread)(const WindowBlock& block, const T* weights, const T* x, std::int64_t x_stride,
                   T* gradient) = nullptr;

    /// `spread` for shared blocks of `num_real` queries: x is (num_real, x_stride), zero from the last channel to the
    /// next multiple of the lanes. Entry (row, column, channel) of `gradient` is at row * row_stride + column *
    /// column_stride + channel.
    void (*spread_shared)(const WindowBlock& block, const T* weights, std::int64_t num_real, const T* x,
                          std::int64_t x_stride, T* gradient, std::int64_t row_stride,
                          std::int64_t column_stride) = nullptr;
};

/// The kernels for the widest vectors that this processor has.
template <class T>
const WindowKernels<T>& window_kernels();

/// Limits the instruction set of the kernels: 0 for the baseline, 1 AVX2, 2 AVX-512. For tests. @return the previous
/// limit
int limit_window_kernels(int level);

}  // namespace meshard
