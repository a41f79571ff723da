// SPDX-License-Identifier: Apache-2.0
#include "ops/grids/plane_indices.h"

#include <ATen/ATen.h>

namespace meshard {

at::Tensor indices_in_whole(const at::Tensor& indices, const std::vector<Range>& box,
                            const std::vector<std::int64_t>& padded, const std::vector<std::int64_t>& whole)
{
    auto rest = indices, result = at::zeros_like(indices);
    std::int64_t stride = 1;
    for (auto d = std::ssize(box) - 1; d >= 0; --d) {
        const auto coordinate = d > 0 ? rest.remainder(padded[d]) : rest;
        result.add_(coordinate.add(box[d].begin), stride);
        rest = rest.floor_divide(padded[d]);
        stride *= whole[d];
    }
    return result;
}

at::Tensor scatter_to_box(const at::Tensor& gradient, const at::Tensor& indices, const std::vector<Range>& box,
                          const std::vector<std::int64_t>& whole)
{
    const auto n = std::ssize(box);
    auto rest = indices, position = at::zeros_like(indices);
    auto inside = at::ones(indices.sizes(), indices.options().dtype(at::kBool));
    std::int64_t stride = 1;
    for (auto d = n - 1; d >= 0; --d) {
        const auto coordinate = d > 0 ? rest.remainder(whole[d]) : rest;
        inside.logical_and_(coordinate.ge(box[d].begin).logical_and_(coordinate.lt(box[d].end)));
        position.add_(coordinate.sub(box[d].begin), stride);
        rest = rest.floor_divide(whole[d]);
        stride *= box[d].size();
    }
    auto shape = gradient.sizes().vec();
    for (std::int64_t d = 0; d < n; ++d) shape[shape.size() - n + d] = box[d].size();
    const auto result = at::zeros(shape, gradient.options());
    if (result.numel() == 0 || gradient.numel() == 0) return result;
    const auto first = gradient.dim() - n;
    position = position.masked_fill(inside.logical_not(), 0);
    const auto counted = gradient.masked_fill(inside.logical_not(), 0);
    result.flatten(first).scatter_add_(first, position.flatten(first), counted.flatten(first));
    return result;
}

}  // namespace meshard
