// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"

#include <cstdint>
#include <vector>

namespace meshard {

struct RowClusters {
    std::int32_t num_clusters = 0;
    /// Cluster of each row; clusters are numbered in the order of their first rows.
    std::vector<std::int32_t> cluster_of;
};

/// Connected clusters of at most `most_rows` rows of a symmetric graph: each round merges neighbours in pairs, first
/// those that share most edges, among these the smallest (heavy-edge matching, Karypis and Kumar 1998). Deterministic.
RowClusters cluster_rows(const Csr& graph, std::int32_t most_rows);

/// A graph whose rows are clusters of another graph's rows.
struct JoinedRows {
    RowClusters clusters;
    Csr graph;
    std::vector<std::int32_t> edge_weights;  ///< for each entry the number of edges between the two clusters
    std::vector<std::int32_t> sizes;         ///< number of rows in each cluster
};

/// The graph after `num_rounds` (1 or more) rounds of merging neighbours in pairs, as in `cluster_rows`; ties are
/// decided at random by the seed.
JoinedRows join_rows(const Csr& graph, int num_rounds, std::uint64_t seed);

}  // namespace meshard
