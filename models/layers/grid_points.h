// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// An input of a model as rows of points: (B, N, dim) as it is, (B, extents, dim) on a grid with its extents flattened.
///
/// @param model   begins the message of an error, `name` names the input in it
/// @param grid    extents of the grid; empty for points in any order
/// @throws InvalidInput if the input is missing or its shape is neither.
at::Tensor flat_points(const char* model, const char* name, const at::Tensor& tensor, at::IntArrayRef grid, std::int64_t dim);

}  // namespace meshard
