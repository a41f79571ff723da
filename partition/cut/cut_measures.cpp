// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/cut_measures.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace meshard {

double CutMeasures::score() const
{
    return 3 * std::log(1.0 + static_cast<double>(cut)) + std::log(1.0 + static_cast<double>(largest_ghosts));
}

CutMeasures measure_cut(const Partition& partition, const Csr& graph)
{
    CutMeasures measures;
    std::vector<std::int64_t> ghosts(partition.num_parts, 0);
    std::vector<std::int64_t> seen_by(partition.num_parts,
                                      -1);  // for each part the last row that has a neighbour in it
    for (std::int64_t i = 0; i < partition.num_rows(); ++i) {
        for (const auto j : graph.row(i)) {
            const auto part = partition.owners[j];
            if (part == partition.owners[i]) continue;
            ++measures.cut;
            if (std::exchange(seen_by[part], i) != i) ++ghosts[part];
        }
    }
    measures.cut /= 2;
    measures.largest_ghosts = std::ranges::max(ghosts);
    return measures;
}

std::vector<std::int32_t> parts_in_pieces(const Partition& partition, const Csr& graph)
{
    std::vector<std::int32_t> parts;
    const auto quality = measure_quality(partition, graph);
    for (std::int32_t part = 0; part < partition.num_parts; ++part)
        if (quality.parts[part].num_components > 1) parts.push_back(part);
    return parts;
}

}  // namespace meshard
