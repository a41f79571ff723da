// SPDX-License-Identifier: Apache-2.0
#include "models/layers/grid_points.h"

#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

namespace meshard {

at::Tensor flat_points(const char* model, const char* name, const at::Tensor& tensor, at::IntArrayRef grid,
                       std::int64_t dim)
{
    const auto num_dims = std::ssize(grid);
    if (tensor.defined() && tensor.dim() >= 2 && tensor.size(-1) == dim) {
        if (tensor.dim() == 3 && (grid.empty() || tensor.size(1) == c10::multiply_integers(grid))) return tensor;
        if (!grid.empty() && tensor.dim() == num_dims + 2 && tensor.sizes().slice(1, grid.size()) == grid)
            return tensor.flatten(1, num_dims);
    }

    throw InvalidInput("{}: {} must be (batch, {}, {}), and {}.", model, name,
                       grid.empty()
                           ? "points"
                           : fmt::format("{} points or the extents {}", c10::multiply_integers(grid), c10::str(grid)),
                       dim, tensor.defined() ? "has the shape " + c10::str(tensor.sizes()) : "is missing");
}

}  // namespace meshard
