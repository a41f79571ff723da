// SPDX-License-Identifier: Apache-2.0
#include "models/layers/grid_points.h"

#include "partition/error.h"

#include <torch/torch.h>

#include <sstream>

namespace meshard {

at::Tensor flat_points(const char* model, const char* name, const at::Tensor& tensor, at::IntArrayRef grid, std::int64_t dim)
{
    const auto num_dims = static_cast<std::int64_t>(grid.size());
    if (tensor.defined() && tensor.dim() >= 2 && tensor.size(-1) == dim) {
        if (tensor.dim() == 3 && (grid.empty() || tensor.size(1) == c10::multiply_integers(grid))) return tensor;
        if (!grid.empty() && tensor.dim() == num_dims + 2 && tensor.sizes().slice(1, grid.size()) == grid) return tensor.flatten(1, num_dims);
    }

    std::ostringstream message;
    message << model << ": " << name << " must be (batch, ";
    if (grid.empty())
        message << "points";
    else
        message << c10::multiply_integers(grid) << " points or the extents " << grid;
    message << ", " << dim << "), and ";
    if (tensor.defined())
        message << "has the shape " << tensor.sizes() << ".";
    else
        message << "is missing.";
    throw InvalidInput(message.str());
}

}  // namespace meshard
