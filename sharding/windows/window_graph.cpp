// SPDX-License-Identifier: Apache-2.0
#include "sharding/windows/window_graph.h"

#include "partition/lists.h"

#include <algorithm>
#include <utility>

namespace meshard {

std::span<const Crossing> crossings_from(std::span<const Crossing> crossings, std::int64_t begin, std::int64_t end)
{
    const auto at = [&](std::int64_t position) {
        return std::ranges::lower_bound(crossings, position, {},
                                        [](const Crossing& pair) { return std::int64_t{pair.here}; });
    };
    return {at(begin), at(end)};
}

WindowGraph join_outside(const Csr& inner, std::span<const Crossing> crossings, std::int64_t begin)
{
    WindowGraph result;
    result.num_cells = static_cast<std::int32_t>(inner.num_rows());
    for (const auto& pair : crossings) result.outside.push_back(pair.there);
    sort_unique(result.outside);

    std::vector<std::pair<std::int32_t, std::int32_t>> back;  // (row outside, cell here)
    auto& graph = result.graph;
    graph.indices.reserve(inner.indices.size() + 2 * crossings.size());
    graph.offsets.reserve(inner.offsets.size() + result.outside.size());
    auto next = crossings.begin();
    for (std::int32_t cell = 0; cell < result.num_cells; ++cell) {
        const auto row = inner.row(cell);
        graph.indices.insert(graph.indices.end(), row.begin(), row.end());
        for (; next != crossings.end() && next->here - begin == cell; ++next) {
            const auto outside = static_cast<std::int32_t>(std::ranges::lower_bound(result.outside, next->there) -
                                                           result.outside.begin());
            graph.indices.push_back(result.num_cells + outside);
            back.emplace_back(outside, cell);
        }
        graph.offsets.push_back(graph.num_entries());
    }
    std::ranges::sort(back);
    auto at = back.begin();
    for (std::int32_t outside = 0; outside < static_cast<std::int32_t>(result.outside.size()); ++outside) {
        for (; at != back.end() && at->first == outside; ++at) graph.indices.push_back(at->second);
        graph.offsets.push_back(graph.num_entries());
    }
    return result;
}

}  // namespace meshard
