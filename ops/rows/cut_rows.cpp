// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/cut_rows.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>

namespace meshard {

RankGroup CutRows::group() const
{
    return is_cut() ? layout->device_mesh->group(axis) : RankGroup();
}

std::vector<std::int64_t> CutRows::ids() const
{
    if (is_cut()) return own_row_ids(*layout, axis, own.size(0));
    auto numbers = numbers_from<std::int64_t>(0, own.size(0));
    return numbers;
}

std::vector<std::int64_t> own_row_ids(const ShardSpec& layout, std::int64_t axis, std::int64_t num_own)
{
    const auto& map = layout.index_map;
    if (map && map->num_owned == num_own) return {map->owned().begin(), map->owned().end()};
    auto ids = numbers_from<std::int64_t>(layout.axes[axis].offset(layout.device_mesh->coordinate(axis)), num_own);
    return ids;
}

at::Tensor CutRows::like(const at::Tensor& rows) const
{
    return layout ? from_local(rows, layout) : rows;
}

CutRows cut_rows_of(const char* where, const char* what, const at::Tensor& tensor)
{
    CutRows rows;
    rows.own = tensor;
    rows.num_global = tensor.dim() > 0 ? tensor.size(0) : 0;
    if (!is_sharded(tensor)) return rows;
    reduce_partials(tensor);
    rows.layout = spec_of(tensor);
    for (std::size_t a = 0; a < rows.layout->axes.size(); ++a) {
        const auto& layout = rows.layout->axes[a];
        if (layout.is_replicate()) continue;
        if (layout.placement.dim != 0 || layout.blocks != 1 || rows.is_cut()) {
            throw InvalidInput("{}: the {} have layout {}, expected a cut along the rows only. Redistribute them.",
                               where, what, to_string(*rows.layout));
        }
        rows.axis = static_cast<std::int64_t>(a);
    }
    rows.own = to_local(tensor);
    return rows;
}

void throw_together(const std::string& error, const RankGroup& group)
{
    const auto lengths = group.all_gather_integers(std::ssize(error));
    for (int r = 0; r < static_cast<int>(lengths.size()); ++r) {
        if (lengths[r] == 0) continue;
        auto text = at::zeros({lengths[r]}, at::kByte);
        if (group.rank() == r) std::ranges::copy(error, text.mutable_data_ptr<std::uint8_t>());
        group.broadcast(text, r);
        std::string message(reinterpret_cast<const char*>(text.const_data_ptr<std::uint8_t>()), lengths[r]);
        throw InvalidInput(group.size() == 1 ? message : fmt::format("{} (Found by rank {}.)", message, r));
    }
}

}  // namespace meshard
