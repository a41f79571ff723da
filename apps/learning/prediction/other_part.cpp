// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/other_part.h"

#include "apps/learning/prediction/usable_input.h"
#include "io/mesh_io.h"
#include "partition/error.h"
#include "sharding/ranks/rank_group.h"
#include "sharding/tensor/distribute_rows.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/torch.h>

#include <array>
#include <numeric>
#include <vector>

namespace meshard {

std::shared_ptr<const PointInputs> read_other_part(const std::filesystem::path& file, const DataConfig& data, const CaseFrame& frame,
                                                   const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device)
{
    const auto& all = device_mesh->all();
    at::Tensor told;
    read_together(all, [&] {
        if (all.rank() != 0) return;
        const auto mesh = read_mesh(file);
        std::vector<std::int64_t> rows(data.on_cells ? mesh.num_cells() : mesh.num_points());
        if (rows.empty()) throw InvalidInput(file.string() + " has no " + (data.on_cells ? "cells" : "points") + " of which the model is told.");
        std::iota(rows.begin(), rows.end(), std::int64_t{0});
        told = point_inputs(mesh, rows, data, frame, file.string()).to(device);
    });
    const std::array<std::int64_t, 1> own{told.defined() ? told.size(0) : 0};
    const auto num_rows = all.all_gather_integers(own)[0][0];
    const AxisLayout cut{Shard(0), std::make_shared<const Extents>(even_extents(num_rows, all.size())), 1};
    auto spec = make_spec(device_mesh, {cut});
    const auto local = all.size() == 1 ? told : to_local(distribute_rows(told, 0, spec));
    std::vector<std::int64_t> ids(local.size(0));
    std::iota(ids.begin(), ids.end(), cut.offset(all.rank()));
    return std::make_shared<const PointInputs>(sharded_inputs(local, ids, device_mesh));
}

}  // namespace meshard
