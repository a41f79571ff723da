// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/grid_rows.h"

#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr std::int64_t kFirstDirection = 2;  // dimension of the first direction

/// Whether ranks have nothing but blocks of the grid, of each row all channels and samples.
bool is_in_blocks(const SpecPtr& of_grid)
{
    return of_grid && std::ranges::all_of(of_grid->axes, [](const AxisLayout& axis) {
               return axis.is_shard() && axis.placement.dim >= kFirstDirection && axis.blocks == 1;
           });
}

/// Places in the grid of the rows of this rank's block, ascending.
std::shared_ptr<const IndexMap> places_of_rows(const ShardSpec& of_grid, at::IntArrayRef extents)
{
    auto places = at::zeros({1}, at::kLong);
    for (std::size_t i = 0; i < extents.size(); ++i) {
        const auto axis = of_grid.axis_of_dim(kFirstDirection + static_cast<std::int64_t>(i));
        std::int64_t begin = 0, count = extents[i];
        if (axis >= 0) {
            const auto me = of_grid.device_mesh->coordinate(axis);
            begin = of_grid.axes[axis].offset(me);
            count = (*of_grid.axes[axis].extents)[me];
        }
        places = (places.unsqueeze(1) * extents[i] + at::arange(begin, begin + count, at::kLong)).flatten();
    }
    const auto* ids = places.const_data_ptr<std::int64_t>();
    return std::make_shared<const IndexMap>(IndexMap{.num_global = c10::multiply_integers(extents),
                                                     .num_owned = static_cast<std::int32_t>(places.numel()),
                                                     .global_ids = {ids, ids + places.numel()},
                                                     .ghost_owners = {}});
}

}  // namespace

SpecPtr layout_of_rows(const SpecPtr& of_grid, at::IntArrayRef extents)
{
    Extents of_ranks{1};  // by the numbers of the ranks, of which the last axis varies fastest
    auto rows_apart = c10::multiply_integers(extents);
    for (const auto& axis : of_grid->axes) {
        Extents finer;
        for (const auto before : of_ranks) {
            for (const auto extent : *axis.extents) finer.push_back(before * extent);
        }
        of_ranks = std::move(finer);
        rows_apart /= axis.total();
    }
    for (auto& extent : of_ranks) extent *= rows_apart;
    const bool is_in_order = of_grid->device_mesh->num_axes() == 1 && of_grid->axes[0].placement.dim == kFirstDirection;
    return make_spec(of_grid->device_mesh->in_a_row(),
                     {AxisLayout{Shard(1), std::make_shared<const Extents>(std::move(of_ranks)), 1}},
                     is_in_order ? nullptr : places_of_rows(*of_grid, extents));
}

at::Tensor rows_of_grid(const at::Tensor& grid, const SpecPtr& of_rows)
{
    const auto flat = [](const at::Tensor& part) { return part.movedim(1, -1).flatten(1, -2); };
    if (!is_sharded(grid) || !is_in_blocks(spec_of(grid))) return flat(grid);
    return from_local(flat(to_local(grid)).contiguous(),
                      of_rows ? of_rows : layout_of_rows(spec_of(grid), grid.sizes().slice(kFirstDirection)));
}

at::Tensor grid_of_rows(const at::Tensor& rows, at::IntArrayRef extents, const SpecPtr& of_grid)
{
    const auto folded = [](const at::Tensor& part, at::IntArrayRef sizes) {
        return part.unflatten(1, sizes).movedim(-1, 1);
    };
    if (!is_in_blocks(of_grid)) return folded(rows, extents);
    std::vector<std::int64_t> shape{rows.size(0), rows.size(2)};
    shape.insert(shape.end(), extents.begin(), extents.end());
    shape = of_grid->local_shape(shape);
    return from_local(folded(to_local(rows), at::IntArrayRef(shape).slice(kFirstDirection)).contiguous(), of_grid);
}

}  // namespace meshard
