// SPDX-License-Identifier: Apache-2.0
#include "partition/row_clusters.h"

#include <numeric>
#include <utility>

namespace meshard {

namespace {

struct WeightedGraph {
    Csr graph;
    std::vector<std::int32_t> weights; // of each entry
    std::vector<std::int32_t> sizes;   // rows in each vertex
};

// Number of each vertex after joining pairs.
RowClusters match(const WeightedGraph& fine, std::int32_t most_rows)
{
    const auto num_vertices = static_cast<std::int32_t>(fine.graph.num_rows());
    RowClusters pairs{0, std::vector<std::int32_t>(num_vertices, -1)};
    for (std::int32_t v = 0; v < num_vertices; ++v) {
        if (pairs.cluster_of[v] >= 0) continue;
        std::int32_t best = -1, best_weight = 0;
        for (auto k = fine.graph.offsets[v]; k < fine.graph.offsets[v + 1]; ++k) {
            const auto u = fine.graph.indices[k];
            if (pairs.cluster_of[u] >= 0 || fine.sizes[u] + fine.sizes[v] > most_rows) continue;
            const auto weight = fine.weights[k];
            if (best >= 0 && (weight < best_weight || (weight == best_weight && fine.sizes[u] >= fine.sizes[best]))) continue;
            best = u;
            best_weight = weight;
        }
        pairs.cluster_of[v] = pairs.num_clusters;
        if (best >= 0) pairs.cluster_of[best] = pairs.num_clusters;
        ++pairs.num_clusters;
    }
    return pairs;
}

WeightedGraph contract(const WeightedGraph& fine, const RowClusters& pairs)
{
    const auto num_vertices = static_cast<std::int32_t>(fine.graph.num_rows());
    WeightedGraph coarse;
    coarse.sizes.assign(pairs.num_clusters, 0);
    std::vector<std::int32_t> first(pairs.num_clusters, -1), second(pairs.num_clusters, -1);
    for (std::int32_t v = 0; v < num_vertices; ++v) {
        const auto cluster = pairs.cluster_of[v];
        coarse.sizes[cluster] += fine.sizes[v];
        (first[cluster] < 0 ? first : second)[cluster] = v;
    }
    std::vector<std::int64_t> entry_of(pairs.num_clusters, -1); // of a neighbour in the row at hand
    for (std::int32_t cluster = 0; cluster < pairs.num_clusters; ++cluster) {
        const auto begin = coarse.graph.num_entries();
        for (const auto v : {first[cluster], second[cluster]}) {
            if (v < 0) continue;
            for (auto k = fine.graph.offsets[v]; k < fine.graph.offsets[v + 1]; ++k) {
                const auto other = pairs.cluster_of[fine.graph.indices[k]];
                if (other == cluster) continue;
                if (entry_of[other] < begin) {
                    entry_of[other] = coarse.graph.num_entries();
                    coarse.graph.indices.push_back(other);
                    coarse.weights.push_back(0);
                }
                coarse.weights[entry_of[other]] += fine.weights[k];
            }
        }
        coarse.graph.offsets.push_back(coarse.graph.num_entries());
    }
    return coarse;
}

} // namespace

RowClusters cluster_rows(const Csr& graph, std::int32_t most_rows)
{
    RowClusters clusters{static_cast<std::int32_t>(graph.num_rows()), std::vector<std::int32_t>(graph.num_rows())};
    std::iota(clusters.cluster_of.begin(), clusters.cluster_of.end(), 0);
    if (most_rows < 2) return clusters;
    WeightedGraph current{graph, std::vector<std::int32_t>(graph.indices.size(), 1), std::vector<std::int32_t>(graph.num_rows(), 1)};
    while (true) {
        const auto pairs = match(current, most_rows);
        const bool is_little = pairs.num_clusters >= 0.95 * static_cast<double>(clusters.num_clusters);
        for (auto& cluster : clusters.cluster_of) cluster = pairs.cluster_of[cluster];
        clusters.num_clusters = pairs.num_clusters;
        if (is_little) return clusters;
        current = contract(current, pairs);
    }
}

} // namespace meshard
