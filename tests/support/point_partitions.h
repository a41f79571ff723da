// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/neighbor_graph.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/shard_tensor.h"
#include "tests/support/four_partitions.h"
#include "tests/support/owner_maps.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Owners of points, (n, 3) on the CPU, in the four ways of `four_partitions`, with the graph of nearest neighbours.
inline std::vector<std::pair<std::string, std::vector<int>>> point_partitions(const at::Tensor& points, int ranks)
{
    const auto single = points.to(at::kFloat).contiguous();
    const std::vector<float> centers(single.const_data_ptr<float>(), single.const_data_ptr<float>() + single.numel());
    std::vector<std::pair<std::string, std::vector<int>>> all;
    for (const auto& [name, partition] :
         four_partitions(nearest_neighbor_graph(DataArray::from("points", centers, 3), 6), centers, ranks)) {
        all.emplace_back(name, std::vector<int>(partition.owners.begin(), partition.owners.end()));
    }
    return all;
}

/// This rank's rows of a whole, and the tensor that they are a part of.
struct CutPoints {
    std::shared_ptr<const IndexMap> map;
    at::Tensor ids;
    SpecPtr spec;

    CutPoints(const std::vector<int>& owners, const std::shared_ptr<const DeviceMesh>& mesh)
        : map(owned(owners, static_cast<int>(mesh->coordinate(0)))), ids(at::tensor(map->global_ids, at::kLong)),
          spec(shard_spec(map, mesh))
    {
    }
    at::Tensor of(const at::Tensor& whole) const { return whole.index_select(0, ids); }
    at::Tensor cut(const at::Tensor& whole) const { return from_local(of(whole), spec); }
};

}  // namespace meshard
