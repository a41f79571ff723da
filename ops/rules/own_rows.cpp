// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/own_rows.h"

#include <ATen/ATen.h>

namespace meshard {

void check_positions(const at::Tensor& positions, std::int64_t size)
{
    if (positions.numel() == 0) return;
    const auto [low, high] = at::aminmax(positions);
    const auto least = low.item<std::int64_t>(), most = high.item<std::int64_t>();
    TORCH_CHECK_INDEX(least >= 0 && most < size, "index ", least < 0 ? least : most,
                      " is out of bounds for a dimension of size ", size);
}

OwnRows own_rows(const AxisLayout& layout, std::int64_t coordinate, const at::Tensor& positions)
{
    const auto total = layout.total(), extent = (*layout.extents)[coordinate];
    check_positions(positions, layout.blocks * total);
    const auto rows = positions.remainder(total) - layout.offset(coordinate);
    const auto held = rows.ge(0).logical_and_(rows.lt(extent));
    const auto here = layout.blocks == 1 ? rows : positions.div(total, "floor") * extent + rows;
    return {here.masked_fill(held.logical_not(), 0), held};
}

at::Tensor with_spare_row(const at::Tensor& local, std::int64_t dim, const AxisLayout& layout, std::int64_t coordinate,
                          at::Tensor& positions)
{
    const auto own = own_rows(layout, coordinate, positions);
    positions = own.here.masked_fill(own.held.logical_not(), local.size(dim));
    auto shape = local.sizes().vec();
    shape[dim] = 1;
    return at::cat({local, at::zeros(shape, local.options())}, dim);
}

}  // namespace meshard
