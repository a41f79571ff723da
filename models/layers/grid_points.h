// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// Returns an input of a model as (B, N, dim): unchanged if it has this shape, with flattened extents if it is (B,
/// extents, dim) on a grid.
///
/// @param model, name   start of error messages, and the input's name in them
/// @param grid    extents of the grid; empty for points in any order
/// @throws InvalidInput if the input is missing or has another shape.
at::Tensor flat_points(const char* model, const char* name, const at::Tensor& tensor, at::IntArrayRef grid,
                       std::int64_t dim);

}  // namespace meshard
