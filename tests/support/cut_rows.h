// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <memory>

namespace meshard {

/// `whole` cut along dimension 2, the rows of images, into parts of `extents` rows.
inline at::Tensor cut_rows(const at::Tensor& whole, const Extents& extents,
                           const std::shared_ptr<const DeviceMesh>& mesh)
{
    const AxisLayout layout{Shard(2), std::make_shared<Extents>(extents), 1};
    return from_local(narrow_to_shard(whole, layout, mesh->coordinate(0)).clone(), make_spec(mesh, {layout}));
}

}  // namespace meshard
