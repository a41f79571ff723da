// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/steps/point_sampling.h"

#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace meshard {
CaseTensors sampled_case(const CaseTensors& example, const std::vector<std::int64_t>& drawn, bool knows_all)
{
    const auto count = std::ssize(drawn);
    const auto spec = spec_of(example.target);
    const auto& ids = spec->index_map->global_ids;
    IndexMap map{.num_global = count, .num_owned = 0, .global_ids = {}, .ghost_owners = {}};
    std::vector<std::int64_t> rows, own_ids;
    auto next = drawn.begin();
    for (std::size_t row = 0; row < ids.size(); ++row) {
        next = std::lower_bound(next, drawn.end(), ids[row]);
        if (next == drawn.end()) break;
        if (*next != ids[row]) continue;
        rows.push_back(static_cast<std::int64_t>(row));
        own_ids.push_back(ids[row]);
        map.global_ids.push_back(next - drawn.begin());
    }
    map.num_owned = static_cast<std::int32_t>(rows.size());
    const auto sampled = shard_spec(std::make_shared<const IndexMap>(std::move(map)), spec->device_mesh, 1);
    auto index = at::tensor(rows, at::kLong);
    // The index is copied from page-locked memory; otherwise the host would wait for all work queued on the device.
    if (const auto device = to_local(example.target).device(); !device.is_cpu())
        index = index.pin_memory().to(device, /*non_blocking=*/true);
    const auto taken = [&](const at::Tensor& whole) {
        return from_local(to_local(whole).index_select(1, index), sampled);
    };
    auto result = example;
    result.num_points = count;
    result.inputs.embedding = taken(example.inputs.embedding);
    result.inputs.positions = taken(example.inputs.positions);
    result.target = taken(example.target);
    if (example.measures.defined()) result.measures = taken(example.measures);
    if (knows_all)
        result.inputs.drawn_from = std::make_shared<const AllPoints>(
            AllPoints{example.inputs.embedding, example.inputs.positions, at::tensor(own_ids, at::kLong)});
    return result;
}

}  // namespace meshard
