// SPDX-License-Identifier: Apache-2.0
#include "models/registry/grid_forward.h"

#include "ops/grids/grid_rows.h"
#include "sharding/tensor/shard_tensor.h"

#include <torch/types.h>

namespace meshard {

void take_rows_of_grids(Model& model, const Normalizer& of_inputs)
{
    model.forward = [forward = model.forward_grid, normalizer = of_inputs](const PointInputs& inputs) mutable {
        // Copied once, not in each step.
        if (const auto device = inputs.embedding.device(); normalizer.mean.device() != device)
            normalizer = normalizer.on(device);
        auto rows = normalizer.normalize(inputs.embedding);
        if (inputs.constants.defined())
            rows = torch::cat({rows, torch::ones_like(rows.narrow(-1, 0, 1)) * inputs.constants.unsqueeze(1)}, -1);

        const auto& layout = inputs.grid_layout;
        auto result = forward(grid_of_rows(rows, inputs.grid, layout).contiguous());  // (1, C, extents)
        if (!layout) return rows_of_grid(result);
        if (!(*spec_of(result) == *layout)) result = redistribute(result, layout);
        return rows_of_grid(result, spec_of(rows));
    };
}

}  // namespace meshard
