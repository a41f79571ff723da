// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "partition/geometric_partitioner.h"
#include "partition/metis_partitioner.h"
#include "partition/neighbor_graph.h"
#include "sharding/device_mesh.h"
#include "sharding/shard_tensor.h"
#include "tests/support/owner_maps.h"

namespace meshard {

/// Owners of points, (n, 3) on the CPU, in four ways: METIS on their neighbour graph, runs along a curve, at random, and at random among half of the ranks, so
/// that the others are empty.
inline std::vector<std::pair<std::string, std::vector<int>>> point_partitions(const at::Tensor& points, int ranks)
{
    const auto single = points.to(at::kFloat).contiguous();
    const std::vector<float> centers(single.const_data_ptr<float>(), single.const_data_ptr<float>() + single.numel());
    const auto owners = [](const Partition& partition) { return std::vector<int>(partition.owners.begin(), partition.owners.end()); };
    const auto graph = nearest_neighbor_graph(DataArray::from("points", centers, 3), 6);
    std::vector<std::pair<std::string, std::vector<int>>> all;
    all.emplace_back("metis", owners(partition_with_metis(graph, {.num_parts = ranks})));
    all.emplace_back("curve", owners(partition_by_curve(centers, ranks, {})));
    std::mt19937_64 random(ranks);
    for (const int used : {ranks, (ranks + 1) / 2}) {
        std::vector<int> drawn(points.size(0));
        for (auto& owner : drawn) owner = ranks - 1 - static_cast<int>(random() % used);
        all.emplace_back(used == ranks ? "random" : "empty ranks", std::move(drawn));
    }
    return all;
}

/// This rank's rows of a whole, and the tensor that they are a part of.
struct CutPoints {
    std::shared_ptr<const IndexMap> map;
    at::Tensor ids;
    SpecPtr spec;

    CutPoints(const std::vector<int>& owners, const std::shared_ptr<const DeviceMesh>& mesh)
        : map(owned(owners, static_cast<int>(mesh->coordinate(0)))), ids(at::tensor(map->global_ids, at::kLong)), spec(shard_spec(map, mesh))
    {
    }
    at::Tensor of(const at::Tensor& whole) const { return whole.index_select(0, ids); }
    at::Tensor cut(const at::Tensor& whole) const { return from_local(of(whole), spec); }
};

}  // namespace meshard
