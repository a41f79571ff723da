// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/window_attention.h"

#include "ops/attention/window_kernels.h"
#include "ops/fused/tile_math.h"

#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kBlockVectors = 4;  // query vectors that are computed together
constexpr std::int64_t kLeastRows = 32;    // query rows for which keys are packed at a time

/// Adjacent queries of a row that all attend to the same keys, or whose windows move by one column from each to the
/// next.
struct ColumnBlock {
    std::int64_t first_query = 0, num_queries = 0;
    std::int64_t first_key = 0;  ///< first key of the first query
    bool shared = false;
};

/// Divides the queries of a row into blocks of at most `most`.
std::vector<ColumnBlock> column_blocks(const AxisWindows& columns, std::int64_t most)
{
    const auto end = columns.first_query + columns.num_queries, before = columns.window / 2;
    const auto first_moving = std::clamp(before, columns.first_query, end);
    const auto first_at_end = std::clamp(columns.length - columns.window + before + 1, first_moving, end);
    std::vector<ColumnBlock> blocks;
    const auto add = [&](std::int64_t begin, std::int64_t stop, bool shared) {
        for (auto query = begin; query < stop; query += most)
            blocks.push_back({query, std::min(most, stop - query), columns.first_seen(query), shared});
    };
    add(columns.first_query, first_moving, true);
    add(first_moving, first_at_end, false);
    add(first_at_end, end, true);
    return blocks;
}

/// Keys of some rows in the memory order that WindowBlock needs.
template <class T>
class PackedKeys {
public:
    PackedKeys(std::int64_t num_rows, std::int64_t num_columns, std::int64_t channels, std::int64_t margin)
        : num_columns_(num_columns), channels_(channels), channel_stride_(num_columns + margin),
          numbers_(num_rows * channels * channel_stride_ + margin)
    {
    }

    std::int64_t channel_stride() const { return channel_stride_; }
    std::int64_t row_stride() const { return channels_ * channel_stride_; }
    T* at(std::int64_t row, std::int64_t column) { return numbers_.data() + row * row_stride() + column; }

    void fill(const GridOfVectors<const T>& grid, std::int64_t first_row, std::int64_t num_rows)
    {
        for (std::int64_t row = 0; row < num_rows; ++row) {
            for (std::int64_t column = 0; column < num_columns_; ++column) {
                const T* from = grid.data + (first_row + row) * grid.row_stride + column * grid.column_stride;
                T* to = at(row, column);
                for (std::int64_t channel = 0; channel < channels_; ++channel)
                    to[channel * channel_stride_] = from[channel];
            }
        }
    }

    void clear() { std::ranges::fill(numbers_, T(0)); }

    void add_to(const GridOfVectors<T>& grid, std::int64_t first_row, std::int64_t num_rows)
    {
        for (std::int64_t row = 0; row < num_rows; ++row) {
            for (std::int64_t column = 0; column < num_columns_; ++column) {
                T* to = grid.data + (first_row + row) * grid.row_stride + column * grid.column_stride;
                const T* from = at(row, column);
                for (std::int64_t channel = 0; channel < channels_; ++channel)
                    to[channel] += from[channel * channel_stride_];
            }
        }
    }

private:
    std::int64_t num_columns_, channels_, channel_stride_;
    std::vector<T> numbers_;
};

/// A run of rows of queries with the rows of keys that they attend to, relative to the first query and key here.
struct RowRun {
    std::int64_t first_query = 0, num_queries = 0;
    std::int64_t first_key = 0, num_keys = 0;
};

std::vector<RowRun> row_runs(const AxisWindows& rows)
{
    const auto length = std::max(kLeastRows, 2 * rows.window);
    std::vector<RowRun> runs;
    for (std::int64_t first = 0; first < rows.num_queries; first += length) {
        const auto count = std::min(length, rows.num_queries - first);
        const auto first_key = rows.first_seen(rows.first_query + first);
        const auto end_key = rows.first_seen(rows.first_query + first + count - 1) + rows.window;
        runs.push_back({first, count, first_key - rows.first_key, end_key - first_key});
    }
    return runs;
}

template <class T>
GridOfVectors<T> from_query(const GridOfVectors<T>& grid, std::int64_t row, std::int64_t column)
{
    return {grid.data + row * grid.row_stride + column * grid.column_stride, grid.row_stride, grid.column_stride};
}

/// to[channel, t] = factor * the vector of query t.
template <class T>
void pack_queries(T* to, std::int64_t stride, const T* from, std::int64_t column_stride, const ColumnBlock& block,
                  std::int64_t channels, T factor)
{
    for (std::int64_t t = 0; t < block.num_queries; ++t) {
        for (std::int64_t channel = 0; channel < channels; ++channel)
            to[channel * stride + t] = factor * from[t * column_stride + channel];
    }
}

template <class T>
void unpack_queries(T* to, std::int64_t column_stride, const T* from, std::int64_t stride, const ColumnBlock& block,
                    std::int64_t channels, T factor)
{
    for (std::int64_t t = 0; t < block.num_queries; ++t) {
        for (std::int64_t channel = 0; channel < channels; ++channel)
            to[t * column_stride + channel] = factor * from[channel * stride + t];
    }
}

constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

template <class T>
WindowBlock block_of(const WindowAttention<T>& attention, const ColumnBlock& columns, const PackedKeys<T>& keys,
                     std::int64_t lanes)
{
    return {rounded_up(columns.num_queries, lanes),
            attention.rows.window,
            attention.columns.window,
            attention.channels,
            keys.row_stride(),
            keys.channel_stride(),
            columns.shared};
}

}  // namespace

template <class T>
void window_attention(const WindowAttention<T>& attention, const GridOfVectors<T>& output)
{
    const auto& [rows, columns, channels, scale, queries, keys, values] = attention;
    const auto& kernels = window_kernels<T>();
    const auto most = kBlockVectors * kernels.lanes;
    const auto blocks = column_blocks(columns, most);
    const auto runs = row_runs(rows);
    std::int64_t most_keys = 0;
    for (const auto& run : runs) most_keys = std::max(most_keys, run.num_keys);
    PackedKeys<T> packed_keys(most_keys, columns.num_keys, channels, most + kernels.lanes), packed_values = packed_keys;
    std::vector<T> weights(rows.window * columns.window * most), query(channels * most), mixed(channels * most);

    for (const auto& run : runs) {
        packed_keys.fill(keys, run.first_key, run.num_keys);
        packed_values.fill(values, run.first_key, run.num_keys);
        for (const auto& columns_here : blocks) {
            const auto block = block_of(attention, columns_here, packed_keys, kernels.lanes);
            const auto n = block.num_queries;
            const auto column = columns_here.first_query - columns.first_query,
                       key_column = columns_here.first_key - columns.first_key;
            std::ranges::fill(query, T(0));
            for (std::int64_t row = run.first_query; row < run.first_query + run.num_queries; ++row) {
                const auto key_row = rows.first_seen(rows.first_query + row) - rows.first_key - run.first_key;
                const auto from = from_query(queries, row, column);
                pack_queries(query.data(), n, from.data, from.column_stride, columns_here, channels, scale);
                kernels.scores(block, query.data(), packed_keys.at(key_row, key_column), weights.data());
                softmax_rows(weights.data(), rows.window * columns.window, n);
                kernels.mix(block, weights.data(), packed_values.at(key_row, key_column), mixed.data());
                const auto to = from_query(output, row, column);
                unpack_queries(to.data, to.column_stride, mixed.data(), n, columns_here, channels, T(1));
            }
        }
    }
}

template <class T>
void window_attention_backward(const WindowAttention<T>& attention, const GridOfVectors<const T>& output_gradient,
                               const GridOfVectors<T>& queries_gradient, const GridOfVectors<T>& keys_gradient,
                               const GridOfVectors<T>& values_gradient)
{
    const auto& [rows, columns, channels, scale, queries, keys, values] = attention;
    const auto& kernels = window_kernels<T>();
    const auto lanes = kernels.lanes, most = kBlockVectors * lanes, window = rows.window * columns.window;
    const auto blocks = column_blocks(columns, most);
    const auto runs = row_runs(rows);
    std::int64_t most_keys = 0;
    for (const auto& run : runs) most_keys = std::max(most_keys, run.num_keys);
    // A block writes whole vectors of targets: up to columns.window + lanes numbers beyond its last query.
    PackedKeys<T> packed_keys(most_keys, columns.num_keys, channels, most + columns.window + lanes),
        packed_values = packed_keys, keys_sum = packed_keys, values_sum = packed_keys;
    const auto margin = columns.window + lanes;  // numbers that `spread` reads before and after a row
    const auto padded = most + 2 * margin, by_point = rounded_up(channels, lanes);
    std::vector<T> query(channels * most), gradient(channels * most), mixed(channels * most);
    std::vector<T> weights_room(window * most + 2 * margin), slopes_room(window * most + 2 * margin);
    std::vector<T> padded_query(channels * padded), padded_gradient(channels * padded), point_query(most * by_point),
        point_gradient(most * by_point);
    T *weights = weights_room.data() + margin, *slopes = slopes_room.data() + margin;

    for (const auto& run : runs) {
        packed_keys.fill(keys, run.first_key, run.num_keys);
        packed_values.fill(values, run.first_key, run.num_keys);
        keys_sum.clear();
        values_sum.clear();
        for (const auto& columns_here : blocks) {
            const auto block = block_of(attention, columns_here, packed_keys, lanes);
            const auto n = block.num_queries;
            const auto column = columns_here.first_query - columns.first_query,
                       key_column = columns_here.first_key - columns.first_key;
            for (auto* numbers : {&query, &gradient, &padded_query, &padded_gradient, &point_query, &point_gradient})
                std::fill(numbers->begin(), numbers->end(), T(0));
            for (std::int64_t row = run.first_query; row < run.first_query + run.num_queries; ++row) {
                const auto key_row = rows.first_seen(rows.first_query + row) - rows.first_key - run.first_key;
                const auto q = from_query(queries, row, column);
                const auto g = from_query(output_gradient, row, column);
                pack_queries(query.data(), n, q.data, q.column_stride, columns_here, channels, scale);
                pack_queries(gradient.data(), n, g.data, g.column_stride, columns_here, channels, T(1));
                kernels.scores(block, query.data(), packed_keys.at(key_row, key_column), weights);
                softmax_rows(weights, window, n);
                kernels.scores(block, gradient.data(), packed_values.at(key_row, key_column), slopes);
                softmax_rows_backward(slopes, weights, window, n);

                kernels.mix(block, slopes, packed_keys.at(key_row, key_column), mixed.data());
                const auto to = from_query(queries_gradient, row, column);
                unpack_queries(to.data, to.column_stride, mixed.data(), n, columns_here, channels, scale);

                if (!block.shared) {
                    pack_queries(padded_query.data() + margin, padded, q.data, q.column_stride, columns_here, channels,
                                 scale);
                    pack_queries(padded_gradient.data() + margin, padded, g.data, g.column_stride, columns_here,
                                 channels, T(1));
                    kernels.spread(block, slopes, padded_query.data() + margin, padded,
                                   keys_sum.at(key_row, key_column));
                    kernels.spread(block, weights, padded_gradient.data() + margin, padded,
                                   values_sum.at(key_row, key_column));
                    continue;
                }
                for (std::int64_t t = 0; t < columns_here.num_queries; ++t) {
                    for (std::int64_t channel = 0; channel < channels; ++channel) {
                        point_query[t * by_point + channel] = scale * q.data[t * q.column_stride + channel];
                        point_gradient[t * by_point + channel] = g.data[t * g.column_stride + channel];
                    }
                }
                const auto first_row = key_row + run.first_key;
                const auto of_keys = from_query(keys_gradient, first_row, key_column),
                           of_values = from_query(values_gradient, first_row, key_column);
                kernels.spread_shared(block, slopes, columns_here.num_queries, point_query.data(), by_point,
                                      of_keys.data, of_keys.row_stride, of_keys.column_stride);
                kernels.spread_shared(block, weights, columns_here.num_queries, point_gradient.data(), by_point,
                                      of_values.data, of_values.row_stride, of_values.column_stride);
            }
        }
        keys_sum.add_to(keys_gradient, run.first_key, run.num_keys);
        values_sum.add_to(values_gradient, run.first_key, run.num_keys);
    }
}

template void window_attention(const WindowAttention<float>&, const GridOfVectors<float>&);
template void window_attention(const WindowAttention<double>&, const GridOfVectors<double>&);
template void window_attention_backward(const WindowAttention<float>&, const GridOfVectors<const float>&,
                                        const GridOfVectors<float>&, const GridOfVectors<float>&,
                                        const GridOfVectors<float>&);
template void window_attention_backward(const WindowAttention<double>&, const GridOfVectors<const double>&,
                                        const GridOfVectors<double>&, const GridOfVectors<double>&,
                                        const GridOfVectors<double>&);

}  // namespace meshard
