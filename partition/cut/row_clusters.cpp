// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/row_clusters.h"

#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace meshard {

namespace {

struct WeightedGraph {
    Csr graph;
    std::vector<std::int32_t> weights;  // weight of each entry; empty: all 1
    std::vector<std::int32_t> sizes;    // number of rows in each vertex; empty: all 1

    std::int32_t weight(std::int64_t entry) const { return weights.empty() ? 1 : weights[entry]; }
    std::int32_t size(std::int32_t vertex) const { return sizes.empty() ? 1 : sizes[vertex]; }
};

// Merges vertices in pairs and returns their new numbers. Among equally good neighbours it takes the first, or with a
// seed a random one: if vertices are numbered row by row, as in lattices, the first would merge all of them in one
// direction.
RowClusters match(const Csr& graph, const WeightedGraph& fine, std::int32_t most_rows,
                  std::optional<std::uint64_t> seed)
{
    const auto num_vertices = static_cast<std::int32_t>(graph.num_rows());
    RowClusters pairs{0, std::vector<std::int32_t>(num_vertices, -1)};
    for (std::int32_t v = 0; v < num_vertices; ++v) {
        if (pairs.cluster_of[v] >= 0) continue;
        std::int32_t best = -1;
        std::tuple<std::int32_t, std::int32_t, std::uint32_t> best_key;
        for (auto k = graph.offsets[v]; k < graph.offsets[v + 1]; ++k) {
            const auto u = graph.indices[k];
            if (pairs.cluster_of[u] >= 0 || fine.size(u) + fine.size(v) > most_rows) continue;
            std::uint32_t any = 0;
            if (seed)
                any = static_cast<std::uint32_t>(
                    ((static_cast<std::uint64_t>(u) << 32 | static_cast<std::uint32_t>(v)) + *seed) *
                        0x9e3779b97f4a7c15u >>
                    32);
            const std::tuple key(fine.weight(k), -fine.size(u), any);
            if (best >= 0 && key <= best_key) continue;
            best = u;
            best_key = key;
        }
        pairs.cluster_of[v] = pairs.num_clusters;
        if (best >= 0) pairs.cluster_of[best] = pairs.num_clusters;
        ++pairs.num_clusters;
    }
    return pairs;
}

WeightedGraph contract(const Csr& graph, const WeightedGraph& fine, const RowClusters& pairs)
{
    const auto num_vertices = static_cast<std::int32_t>(graph.num_rows());
    WeightedGraph coarse;
    coarse.sizes.assign(pairs.num_clusters, 0);
    std::vector<std::int32_t> first(pairs.num_clusters, -1), second(pairs.num_clusters, -1);
    for (std::int32_t v = 0; v < num_vertices; ++v) {
        const auto cluster = pairs.cluster_of[v];
        coarse.sizes[cluster] += fine.size(v);
        (first[cluster] < 0 ? first : second)[cluster] = v;
    }
    coarse.graph.offsets.reserve(static_cast<std::size_t>(pairs.num_clusters) + 1);
    coarse.graph.indices.reserve(graph.indices.size());
    coarse.weights.reserve(graph.indices.size());
    std::vector<std::int64_t> entry_of(pairs.num_clusters, -1);  // entry of each neighbour in the current row
    for (std::int32_t cluster = 0; cluster < pairs.num_clusters; ++cluster) {
        const auto begin = coarse.graph.num_entries();
        for (const auto v : {first[cluster], second[cluster]}) {
            if (v < 0) continue;
            for (auto k = graph.offsets[v]; k < graph.offsets[v + 1]; ++k) {
                const auto other = pairs.cluster_of[graph.indices[k]];
                if (other == cluster) continue;
                if (entry_of[other] < begin) {
                    entry_of[other] = coarse.graph.num_entries();
                    coarse.graph.indices.push_back(other);
                    coarse.weights.push_back(0);
                }
                coarse.weights[entry_of[other]] += fine.weight(k);
            }
        }
        coarse.graph.offsets.push_back(coarse.graph.num_entries());
    }
    return coarse;
}

// Replaces clusters by those of `pairs` that contain them.
void join(RowClusters& clusters, const RowClusters& pairs)
{
    for (auto& cluster : clusters.cluster_of) cluster = pairs.cluster_of[cluster];
    clusters.num_clusters = pairs.num_clusters;
}

}  // namespace

RowClusters cluster_rows(const Csr& graph, std::int32_t most_rows)
{
    RowClusters clusters{static_cast<std::int32_t>(graph.num_rows()), std::vector<std::int32_t>(graph.num_rows())};
    std::iota(clusters.cluster_of.begin(), clusters.cluster_of.end(), 0);
    if (most_rows < 2) return clusters;
    WeightedGraph current;
    for (bool is_first = true;; is_first = false) {
        const auto& fine = is_first ? graph : current.graph;
        const auto pairs = match(fine, current, most_rows, std::nullopt);
        const bool is_little = pairs.num_clusters >= 0.95 * static_cast<double>(clusters.num_clusters);
        join(clusters, pairs);
        if (is_little) return clusters;
        current = contract(fine, current, pairs);
    }
}

JoinedRows join_rows(const Csr& graph, int num_rounds, std::uint64_t seed)
{
    JoinedRows joined;
    WeightedGraph current;
    for (int round = 0; round < num_rounds; ++round) {
        const auto& fine = round == 0 ? graph : current.graph;
        auto pairs =
            match(fine, current, std::numeric_limits<std::int32_t>::max(), seed + static_cast<std::uint64_t>(round));
        auto coarse = contract(fine, current, pairs);
        if (round == 0)
            joined.clusters = std::move(pairs);
        else
            join(joined.clusters, pairs);
        current = std::move(coarse);
    }
    joined.graph = std::move(current.graph);
    joined.edge_weights = std::move(current.weights);
    joined.sizes = std::move(current.sizes);
    return joined;
}

}  // namespace meshard
