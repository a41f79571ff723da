// SPDX-License-Identifier: Apache-2.0
#include "ops/neighbors/point_clouds.h"

#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

namespace meshard {

std::vector<at::Tensor> unbind_clouds(const char* where, const char* what, const at::Tensor& batch)
{
    if (batch.dim() != 3) {
        throw InvalidInput("{}: the {} have {} dimensions; expected (batch, points, dimensions).", where, what,
                           batch.dim());
    }
    if (!is_sharded(batch)) return batch.unbind(0);
    reduce_partials(batch);
    const auto spec = spec_of(batch);
    auto axes = spec->axes;
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        if (axis.placement.dim != 1 || axis.blocks != 1) {
            throw InvalidInput("{}: the {} have layout {}; expected a cut along dimension 1, their rows.", where, what,
                               to_string(*spec));
        }
        axis.placement = Shard(0);
    }
    const auto cloud_spec = make_spec(spec->device_mesh, axes, spec->index_map);
    std::vector<at::Tensor> clouds;
    for (const auto& cloud : to_local(batch).unbind(0)) clouds.push_back(from_local(cloud, cloud_spec));
    return clouds;
}

}  // namespace meshard
