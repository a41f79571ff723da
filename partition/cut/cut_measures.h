// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// What cuts are compared by.
struct CutMeasures {
    std::int64_t cut = 0;            ///< edges between parts
    std::int64_t largest_ghosts = 0; ///< rows that a part sees, one layer: the largest count

    /// Smaller is better. The cut counts three times: one largest count owes much to chance.
    double score() const;
    bool is_no_worse_than(const CutMeasures& other) const
    {
        return cut <= other.cut && largest_ghosts <= other.largest_ghosts;
    }
};

/// The same numbers as of `measure_quality`, in a fraction of its time.
CutMeasures measure_cut(const Partition& partition, const Csr& graph);

/// Parts whose rows do not hang together, ascending.
std::vector<std::int32_t> parts_in_pieces(const Partition& partition, const Csr& graph);

} // namespace meshard
