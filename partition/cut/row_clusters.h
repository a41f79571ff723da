// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <vector>

namespace meshard {

struct RowClusters {
    std::int32_t num_clusters = 0;
    std::vector<std::int32_t> cluster_of;  ///< of each row; numbered in the order of their first rows
};

/// Connected clusters of at most `most_rows` rows of a symmetric graph: in each round neighbours are joined in pairs, first those that share most
/// edges, of these the smallest (heavy-edge matching, Karypis and Kumar 1998). Deterministic.
RowClusters cluster_rows(const Csr& graph, std::int32_t most_rows);

/// A graph whose rows are clusters of another's.
struct JoinedRows {
    RowClusters clusters;
    Csr graph;
    std::vector<std::int32_t> edge_weights;  ///< of each entry: edges between the two clusters
    std::vector<std::int32_t> sizes;         ///< rows in each cluster
};

/// The graph after `num_rounds` (1 or more) rounds of joining neighbours in pairs, as `cluster_rows` does; ties are chosen at random by the seed.
JoinedRows join_rows(const Csr& graph, int num_rounds, std::uint64_t seed);

}  // namespace meshard
