// SPDX-License-Identifier: Apache-2.0
#include "models/registry/grid_forward.h"

#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

#include <functional>
#include <numeric>

namespace meshard {
namespace {

/// The layout of dimension `to` of a grid for rows (1, N, C) that are cut along dimension 1, or the inverse: `convert`
/// multiplies or divides extents by the number of points in a row of the slowest direction.
SpecPtr with_dimension(const SpecPtr& spec, std::int64_t to, const std::function<std::int64_t(std::int64_t)>& changed)
{
    auto axes = spec->axes;
    for (auto& axis : axes) {
        if (!axis.is_shard()) continue;
        auto extents = *axis.extents;
        for (auto& extent : extents) extent = changed(extent);
        axis = {Shard(to), std::make_shared<const Extents>(std::move(extents)), 1};
    }
    return make_spec(spec->device_mesh, axes);
}

std::vector<std::int64_t> shape_of(const at::Tensor& rows, const std::vector<std::int64_t>& grid, std::int64_t in_line)
{
    std::vector<std::int64_t> shape{1, rows.size(1) / in_line};
    shape.insert(shape.end(), grid.begin() + 1, grid.end());
    shape.push_back(rows.size(2));
    return shape;
}

}  // namespace

void take_rows_of_grids(Model& model, const Normalizer& of_inputs)
{
    model.forward = [forward = model.forward_grid, normalizer = of_inputs](const PointInputs& inputs) mutable {
        // Copied once, not in each step.
        if (const auto device = inputs.embedding.device(); normalizer.mean.device() != device)
            normalizer = normalizer.on(device);
        auto rows = normalizer.normalize(inputs.embedding);
        if (inputs.constants.defined())
            rows = torch::cat({rows, torch::ones_like(rows.narrow(-1, 0, 1)) * inputs.constants.unsqueeze(1)}, -1);

        const auto in_line =
            std::accumulate(inputs.grid.begin() + 1, inputs.grid.end(), std::int64_t{1}, std::multiplies<>());
        const bool is_cut = is_sharded(rows);
        const auto local = is_cut ? to_local(rows) : rows;
        auto grid = local.view(shape_of(local, inputs.grid, in_line))
                        .movedim(-1, 1)
                        .contiguous();  // (1, C, rows of this rank, ...)
        if (!is_cut) return forward(grid).movedim(1, -1).flatten(1, -2);
        const auto of_grid = with_dimension(spec_of(rows), 2, [&](std::int64_t extent) { return extent / in_line; });
        auto result = forward(from_local(grid, of_grid));
        if (!(*spec_of(result) == *of_grid)) result = redistribute(result, of_grid);
        return from_local(to_local(result).movedim(1, -1).flatten(1, -2).contiguous(), spec_of(rows));
    };
}

}  // namespace meshard
