// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace meshard {

using ZarrSizes = std::vector<std::int64_t>;  ///< a number for each dimension, the slowest first

inline std::int64_t product_of(const ZarrSizes& sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// The dimensions, slowest first.
inline std::vector<std::size_t> plain_order(std::size_t num_dimensions)
{
    std::vector<std::size_t> order(num_dimensions);
    std::iota(order.begin(), order.end(), 0);
    return order;
}

/// Steps from value to value along each dimension, if the dimensions lie in `order`, slowest first.
inline ZarrSizes strides_of(const ZarrSizes& shape, const std::vector<std::size_t>& order)
{
    ZarrSizes strides(shape.size());
    std::int64_t stride = 1;
    for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
        strides[*dim] = stride;
        stride *= shape[*dim];
    }
    return strides;
}

/// Calls `f` for all places of a box, the last dimension fastest.
template <class F>
void for_each_place(const ZarrSizes& first, const ZarrSizes& count, F&& f)
{
    if (std::ranges::any_of(count, [](std::int64_t one) { return one <= 0; })) return;
    auto place = first;
    while (true) {
        f(place);
        auto dim = place.size();
        while (dim > 0 && ++place[dim - 1] == first[dim - 1] + count[dim - 1]) {
            place[dim - 1] = first[dim - 1];
            --dim;
        }
        if (dim == 0) return;
    }
}

/// Calls `f` with the number, along each dimension, of all chunks that have places of a box.
template <class F>
void for_each_chunk(const ZarrSizes& chunk_shape, const ZarrSizes& first, const ZarrSizes& count, F&& f)
{
    ZarrSizes first_chunk, num_chunks;
    for (std::size_t dim = 0; dim < first.size(); ++dim) {
        const auto size = chunk_shape[dim];
        first_chunk.push_back(first[dim] / size);
        num_chunks.push_back(count[dim] == 0 ? 0 : (first[dim] + count[dim] - 1) / size - first_chunk[dim] + 1);
    }
    for_each_place(first_chunk, num_chunks, f);
}

/// What a box and a chunk share.
struct SharedBox {
    ZarrSizes first, count;

    SharedBox(const ZarrSizes& box_first, const ZarrSizes& box_count, const ZarrSizes& begin, const ZarrSizes& shape)
    {
        for (std::size_t dim = 0; dim < begin.size(); ++dim) {
            first.push_back(std::max(box_first[dim], begin[dim]));
            const auto end = std::min(box_first[dim] + box_count[dim], begin[dim] + shape[dim]);
            count.push_back(std::max<std::int64_t>(0, end - first[dim]));
        }
    }

    /// Calls `f(values before a run in the chunk, the same in the box, length)` for each run along the last dimension.
    template <class F>
    void for_each_run(const ZarrSizes& begin, const ZarrSizes& chunk_strides, const ZarrSizes& box_first,
                      const ZarrSizes& box_strides, F&& f) const
    {
        auto lines = count;
        std::int64_t length = 1;
        if (!count.empty()) {
            length = count.back();
            lines.back() = std::min<std::int64_t>(1, length);
        }
        for_each_place(first, lines, [&](const ZarrSizes& place) {
            std::int64_t in_chunk = 0, in_box = 0;
            for (std::size_t dim = 0; dim < place.size(); ++dim) {
                in_chunk += (place[dim] - begin[dim]) * chunk_strides[dim];
                in_box += (place[dim] - box_first[dim]) * box_strides[dim];
            }
            f(static_cast<std::size_t>(in_chunk), static_cast<std::size_t>(in_box), static_cast<std::size_t>(length));
        });
    }
};

}  // namespace meshard
