// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// For positions in the whole along a cut dimension: `here` are their indices in this rank's part (0 if another rank
/// holds them), `held` whether this rank holds them. Both have the shape of the positions.
struct OwnRows {
    at::Tensor here, held;
};

/// @throws IndexError (c10) for a position outside of 0 to `size` - 1. Waits for the device.
void check_positions(const at::Tensor& positions, std::int64_t size);

/// @throws IndexError (c10) for a position outside the whole, on every rank that has it.
OwnRows own_rows(const AxisLayout& layout, std::int64_t coordinate, const at::Tensor& positions);

/// What stands for the rows of other ranks in a pending sum: -0, since a row's -0 plus 0 would be 0.
inline at::Scalar nothing_added(const at::Tensor& rows)
{
    return at::isIntegralType(rows.scalar_type(), true) ? at::Scalar(0) : at::Scalar(-0.0);
}

/// Copies this rank's rows of a cut dimension and appends a spare row, which takes writes to other ranks' rows;
/// converts `positions` to indices into the copy.
at::Tensor with_spare_row(const at::Tensor& local, std::int64_t dim, const AxisLayout& layout, std::int64_t coordinate,
                          at::Tensor& positions);

}  // namespace meshard
