// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/cut/balance_target.h"
#include "partition/cut/partition.h"

#include <cstdint>
#include <span>

namespace meshard {

struct MetisOptions {
    std::int32_t num_parts = 1;
    double imbalance = 1.03;  ///< largest allowed ratio of the largest part to the mean
    std::int32_t seed = 0;
    bool recursive = false;        ///< recursive bisection instead of k-way
    std::int32_t num_weights = 1;  ///< as in BalanceTarget
    std::span<const std::int32_t> row_weights = {};
    std::span<const double> capacities = {};
    /// For each entry of the graph the positive cost of cutting it; or empty.
    std::span<const std::int32_t> edge_weights = {};

    BalanceTarget balance() const { return {imbalance, num_weights, row_weights, capacities}; }
};

/// Returns whether METIS's 32-bit indices can count the rows and entries of the graph.
bool fits_metis(std::int64_t num_rows, std::int64_t num_entries);
inline bool fits_metis(const Csr& graph)
{
    return fits_metis(graph.num_rows(), graph.num_entries());
}

/// METIS's partition of the rows of `graph`, which minimises the edge cut: k-way (Karypis and Kumar 1998) or by
/// recursive bisection.
///
/// Handles cases that METIS does not: one part; more parts than rows (the last parts stay empty); parts left empty or
/// above the allowed imbalance are repaired by moving rows from the largest parts, boundary rows first, wherever row
/// counts allow it. Same graph, options and seed give the same partition.
/// @throws InvalidInput if num_parts < 1, imbalance < 1, weights or capacities do not fit (`largest_weights_allowed`),
/// or the
///         graph has more rows or entries than METIS's indices can count.
Partition partition_with_metis(const Csr& graph, const MetisOptions& options);

}  // namespace meshard
