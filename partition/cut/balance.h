// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// The largest number of rows allowed in a part: floor(imbalance * mean), but never less than the mean rounded up.
std::int64_t largest_part_allowed(std::int64_t num_rows, std::int32_t num_parts, double imbalance);

/// Divides the breadth-first order of the rows into runs of equal length (within one row); returns the owner of each
/// row. If there are fewer rows than parts, each row is a part of its own, and the last parts are empty.
std::vector<std::int32_t> breadth_first_blocks(const Csr& graph, std::int32_t num_parts);

/// Moves as few rows as it can until no part is above `largest_part_allowed` and, if there are enough rows, none is
/// empty.
///
/// Rows go to a neighbouring part that has room, those at the common boundary first; if no neighbour has room, along
/// the shortest chain of neighbouring parts to one that has room; if there is no such chain, directly to that part.
/// Deterministic.
void balance_parts(Partition& partition, const Csr& graph, double imbalance);

}  // namespace meshard
