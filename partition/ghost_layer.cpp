// SPDX-License-Identifier: Apache-2.0
#include "partition/ghost_layer.h"

#include <algorithm>
#include <string>

#include "partition/error.h"

namespace meshard {

std::vector<GhostLayer> ghost_layers(const Csr& graph, const Partition& partition, std::int32_t num_layers)
{
    if (num_layers < 0 || num_layers > 255)
        throw InvalidInput("ghost_layers: num_layers is " + std::to_string(num_layers) + ", expected 0 to 255.");
    if (partition.num_rows() != graph.num_rows())
        throw InvalidInput("ghost_layers: the partition has " + std::to_string(partition.num_rows()) +
                           " rows, the graph " + std::to_string(graph.num_rows()) + ".");
    const auto rows = rows_by_part(partition);
    std::vector<GhostLayer> layers(partition.num_parts);
    // Last part that reached the row; one array serves all parts, so the cost follows the parts' rows.
    std::vector<std::int32_t> reached_by = partition.owners;
    std::vector<std::uint64_t> found;   // row and level in one word, to sort by row
    std::vector<std::int32_t> front, next_front;
    for (std::int32_t p = 0; p < partition.num_parts; ++p) {
        found.clear();
        std::span<const std::int32_t> from = rows.row(p);
        for (std::int32_t level = 1; level <= num_layers && !from.empty(); ++level) {
            next_front.clear();
            for (const auto i : from)
                for (const auto j : graph.row(i))
                    if (reached_by[j] != p && partition.owners[j] != p) {
                        reached_by[j] = p;
                        next_front.push_back(j);
                        found.push_back(static_cast<std::uint64_t>(j) << 8 | static_cast<std::uint64_t>(level));
                    }
            front.swap(next_front);
            from = front;
        }
        std::ranges::sort(found);
        layers[p].rows.reserve(found.size());
        layers[p].levels.reserve(found.size());
        for (const auto word : found) {
            layers[p].rows.push_back(static_cast<std::int32_t>(word >> 8));
            layers[p].levels.push_back(static_cast<std::uint8_t>(word & 255));
        }
    }
    return layers;
}

}  // namespace meshard
