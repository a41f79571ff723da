// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/cut/geometric_partitioner.h"
#include "partition/cut/metis_partitioner.h"
#include "partition/mesh/mesh_graph.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// A partition of rows and what it is called.
using NamedPartition = std::pair<std::string, Partition>;

/// Rows cut in four ways: by METIS on their graph, in runs along a curve through their centroids, at random, and at
/// random among the last half of the parts, so that the others are empty.
inline std::vector<NamedPartition> four_partitions(const Csr& graph, const std::vector<float>& centroids, int num_parts)
{
    std::vector<NamedPartition> all;
    all.emplace_back("metis", partition_with_metis(graph, {.num_parts = num_parts}));
    all.emplace_back("curve", partition_by_curve(centroids, num_parts, {}));
    std::mt19937_64 random(num_parts);
    for (const int used : {num_parts, (num_parts + 1) / 2}) {
        Partition drawn{num_parts, std::vector<std::int32_t>(graph.num_rows())};
        for (auto& owner : drawn.owners) owner = num_parts - 1 - static_cast<int>(random() % used);
        all.emplace_back(used == num_parts ? "random" : "empty ranks", std::move(drawn));
    }
    return all;
}

/// The same of a mesh's rows.
inline std::vector<NamedPartition> four_partitions(const Mesh& mesh, int num_parts)
{
    return four_partitions(mesh_graph(mesh), row_centroids(mesh), num_parts);
}

}  // namespace meshard
