// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// `num_queries` adjacent queries of one row of a grid, each of which sees a window of `rows` x `columns` keys.
///
/// Tensors of keys (keys, values, their gradients) have a row of numbers for each channel of each row of the grid, so that adjacent numbers belong to adjacent
/// columns: entry (row, channel, column) is at row * row_stride + channel * channel_stride + column. They are given from the first key of the first query on.
/// Tensors of queries are (channels, num_queries), weights are (rows * columns, num_queries).
struct WindowBlock {
    std::int64_t num_queries = 0;  ///< a multiple of the kernels' lanes; those beyond the real ones are zero
    std::int64_t rows = 0, columns = 0, channels = 0;
    std::int64_t row_stride = 0, channel_stride = 0;
    bool shared = false;  ///< all queries see the same keys, as at a border; otherwise the window moves by one column from a query to the next
};

/// The inner loops of neighbourhood attention for one set of instructions. Keys must be readable `lanes` numbers beyond the last one that is seen.
template <class T>
struct WindowKernels {
    std::int64_t lanes = 0;

    /// weights[(r, c), t] = sum over channels of queries[channel, t] * key[r, channel, c + t], or key[r, channel, c] of shared ones.
    void (*scores)(const WindowBlock& block, const T* queries, const T* keys, T* weights) = nullptr;

    /// output[channel, t] = sum over (r, c) of weights[(r, c), t] * value[r, channel, c + t], or value[r, channel, c] of shared ones.
    void (*mix)(const WindowBlock& block, const T* weights, const T* values, T* output) = nullptr;

    /// gradient[r, channel, c + t] += sum over t of weights[(r, c), t] * x[channel, t], for blocks that are not shared. x has rows of `x_stride` numbers, of
    /// which columns + lanes before and behind each row are zero; weights must be finite as far before and behind.
    void (*spread)(const WindowBlock& block, const T* weights, const T* x, std::int64_t x_stride, T* gradient) = nullptr;

    /// The same for shared blocks, of `num_real` queries: x is (num_real, x_stride), zero beyond the channels up to a multiple of the lanes. The entry
    /// (row, column, channel) of `gradient` is at row * row_stride + column * column_stride + channel.
    void (*spread_shared)(const WindowBlock& block, const T* weights, std::int64_t num_real, const T* x, std::int64_t x_stride, T* gradient,
                          std::int64_t row_stride, std::int64_t column_stride) = nullptr;
};

/// Those for the widest vectors that this processor has.
template <class T>
const WindowKernels<T>& window_kernels();

/// The widest set of instructions that kernels may use: 0 for the baseline, 1 AVX2, 2 AVX-512. For tests; @return what was allowed before.
int limit_window_kernels(int level);

}  // namespace meshard
