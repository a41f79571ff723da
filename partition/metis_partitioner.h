// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "partition/csr.h"
#include "partition/partition.h"

namespace meshard {

struct MetisOptions {
    std::int32_t num_parts = 1;
    double imbalance = 1.03;        ///< largest part over mean part that is allowed
    std::int32_t seed = 0;
};

/// METIS's k-way partition of the rows of `graph` (Karypis and Kumar 1998), which minimises the edge cut.
///
/// Guards what METIS does not: one part; more parts than rows (the parts beyond the rows stay empty); parts left empty or
/// above the allowed imbalance are repaired by moving rows from the largest parts, boundary rows first, wherever row counts
/// allow it. Same graph, options and seed give the same partition.
/// @throws InvalidInput if num_parts < 1, imbalance < 1, or the graph has more rows or entries than METIS's indices can count.
Partition partition_with_metis(const Csr& graph, const MetisOptions& options);

}  // namespace meshard
