// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace meshard {

/// Windows along one axis of a grid: the query at entry i sees the `window` entries from clamp(i - window / 2, 0,
/// length - window) on. At the borders the window is shifted inwards, so that it always has `window` entries (Hassani
/// et al. 2023, Neighborhood Attention Transformer, section 3).
struct AxisWindows {
    std::int64_t length = 0;  ///< entries of the whole axis, at least `window`
    std::int64_t window = 1;
    std::int64_t first_query = 0, num_queries = 0;  ///< entries whose queries are computed here
    std::int64_t first_key = 0, num_keys = 0;       ///< entries whose keys are here: all that those queries attend to

    std::int64_t first_seen(std::int64_t query) const
    {
        return std::clamp<std::int64_t>(query - window / 2, 0, length - window);
    }
};

/// One head of a grid of vectors, whose channels are adjacent in memory.
template <class T>
struct GridOfVectors {
    T* data = nullptr;
    std::int64_t row_stride = 0, column_stride = 0;
};

/// softmax(scale * q k^T) v of one head, where each query attends to the keys in its window.
template <class T>
struct WindowAttention {
    AxisWindows rows, columns;
    std::int64_t channels = 0;
    T scale = 1;
    GridOfVectors<const T> queries, keys, values;
};

/// Writes the output of every query. Memory beyond the arguments: keys and values of some rows, and the weights of some
/// queries of one row.
template <class T>
void window_attention(const WindowAttention<T>& attention, const GridOfVectors<T>& output);

/// Writes the queries' gradient and adds to the keys' and values'. Weights are computed again.
template <class T>
void window_attention_backward(const WindowAttention<T>& attention, const GridOfVectors<const T>& output_gradient,
                               const GridOfVectors<T>& queries_gradient, const GridOfVectors<T>& keys_gradient,
                               const GridOfVectors<T>& values_gradient);

}  // namespace meshard
