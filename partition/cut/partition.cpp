// SPDX-License-Identifier: Apache-2.0
#include "partition/cut/partition.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

namespace meshard {

namespace {

double imbalance_of(std::span<const std::int64_t> sizes, std::int64_t num_rows)
{
    return static_cast<double>(std::ranges::max(sizes)) * static_cast<double>(sizes.size()) /
           static_cast<double>(num_rows);
}

// Returns the root, the lowest row, of the set of row i, in a forest of disjoint sets.
std::int32_t root_of(std::vector<std::int32_t>& root, std::int32_t i)
{
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
}

// Joins the sets of two roots. @return the root of both
std::int32_t join_sets(std::vector<std::int32_t>& root, std::int32_t a, std::int32_t b)
{
    const auto [low, high] = std::minmax({a, b});
    return root[high] = low;
}

}  // namespace

void require_parts(const char* where, std::int64_t num_parts)
{
    if (num_parts < 1) throw InvalidInput("{}: num_parts is {}, expected 1 or more.", where, num_parts);
}

void Partition::validate() const
{
    require_parts("Partition", num_parts);
    bool is_valid = true;  // no early exit, so that the loop is vectorised
    for (const auto p : owners) is_valid &= static_cast<std::uint32_t>(p) < static_cast<std::uint32_t>(num_parts);
    if (is_valid) return;
    const auto outside = std::ranges::find_if(owners, [&](std::int32_t p) { return p < 0 || p >= num_parts; });
    throw InvalidInput("Partition: row {} has owner {}, expected 0 to {}.", outside - owners.begin(), *outside,
                       num_parts - 1);
}

void Partition::validate(const char* where, std::int64_t graph_rows) const
{
    if (num_rows() != graph_rows)
        throw InvalidInput("{}: the partition has {} rows, the graph {}.", where, num_rows(), graph_rows);
    validate();
}

std::vector<std::int64_t> part_sizes(const Partition& partition)
{
    partition.validate();
    std::vector<std::int64_t> sizes(partition.num_parts, 0);
    // Consecutive rows often have the same owner: a run is summed in a register first.
    const auto& owners = partition.owners;
    for (std::size_t begin = 0, end = 0; begin < owners.size(); begin = end) {
        while (end < owners.size() && owners[end] == owners[begin]) ++end;
        sizes[owners[begin]] += static_cast<std::int64_t>(end - begin);
    }
    return sizes;
}

Csr rows_by_part(const Partition& partition)
{
    partition.validate();
    return rows_by_label(partition.owners, partition.num_parts);
}

double imbalance(const Partition& partition)
{
    return partition.num_rows() == 0 ? 1.0 : imbalance_of(part_sizes(partition), partition.num_rows());
}

std::int64_t edge_cut(const Partition& partition, const Csr& graph)
{
    partition.validate("edge_cut", graph.num_rows());
    std::int64_t entries = 0;
    for (std::int64_t i = 0; i < graph.num_rows(); ++i)
        for (const auto j : graph.row(i)) entries += partition.owners[i] != partition.owners[j];
    return entries / 2;
}

std::int64_t communication_volume(const Partition& partition, const Csr& graph)
{
    return measure_quality(partition, graph).communication_volume;
}

PartitionQuality measure_quality(const Partition& partition, const Csr& graph)
{
    partition.validate("measure_quality", graph.num_rows());
    const auto& owners = partition.owners;
    const auto sizes = part_sizes(partition);
    PartitionQuality quality;
    if (!owners.empty()) quality.imbalance = imbalance_of(sizes, partition.num_rows());
    quality.parts.resize(partition.num_parts);
    for (std::int32_t p = 0; p < partition.num_parts; ++p) quality.parts[p].num_owned = sizes[p];

    // One pass in row order, which has fewer cache misses than a search along edges: connected pieces are merged as
    // sets of rows with the lowest one as root, and boundary rows are collected by part.
    std::vector<std::int32_t> root(owners.size());
    std::vector<std::int32_t> boundary, owners_of_boundary;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(owners.size()); ++i) {
        bool is_at_boundary = false;
        auto lowest = i;  // root of the row's piece so far
        for (const auto j : graph.row(i)) {
            if (owners[j] != owners[i])
                is_at_boundary = true;
            else if (j < i)
                lowest = join_sets(root, lowest, root_of(root, j));
        }
        root[i] = lowest;
        if (!is_at_boundary) continue;
        boundary.push_back(i);
        owners_of_boundary.push_back(owners[i]);
    }
    for (std::size_t i = 0; i < root.size(); ++i)
        if (root[i] == static_cast<std::int32_t>(i)) ++quality.parts[owners[i]].num_components;

    auto seen_by = std::move(root);  // last part that has counted this row as a ghost
    std::ranges::fill(seen_by, -1);
    std::vector<std::int64_t> edges_to(partition.num_parts, 0);
    const auto boundary_of_part = rows_by_part({partition.num_parts, std::move(owners_of_boundary)});
    for (std::int32_t p = 0; p < partition.num_parts; ++p) {
        auto& part = quality.parts[p];
        for (const auto at : boundary_of_part.row(p))
            for (const auto j : graph.row(boundary[at])) {
                const auto q = owners[j];
                if (q == p) continue;
                ++part.cut_edges;
                if (edges_to[q]++ == 0) part.neighbors.push_back(q);
                if (std::exchange(seen_by[j], p) != p) ++part.num_ghosts;
            }
        std::ranges::sort(part.neighbors);
        for (const auto q : part.neighbors) part.neighbor_edges.push_back(std::exchange(edges_to[q], 0));
        quality.edge_cut += part.cut_edges;
        quality.communication_volume += part.num_ghosts;
    }
    quality.edge_cut /= 2;  // each cut edge was counted from both ends
    return quality;
}

std::string to_string(const Partition& partition)
{
    const auto sizes = part_sizes(partition);
    const auto [smallest, largest] = std::ranges::minmax(sizes);
    return fmt::format("Partition: {} rows in {} part{} of {} to {}, imbalance {:.3f}", partition.num_rows(),
                       partition.num_parts, partition.num_parts == 1 ? "" : "s", smallest, largest,
                       imbalance(partition));
}

}  // namespace meshard
