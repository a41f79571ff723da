// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

namespace meshard {

/// Returns the layout of the rows (B, N, C) of a grid (B, C, extents) in the layout `of_grid`, every axis of which cuts
/// a direction: each rank's are those of its block, in their order, on the device mesh's `in_a_row`. If there are
/// several axes, an index map has the rows' places in the grid.
SpecPtr layout_of_rows(const SpecPtr& of_grid, at::IntArrayRef extents);

/// Turns a grid (B, C, extents) into one row for each of its places, (B, N, C). A grid that is cut along several
/// directions stays where it is, and its rows lie as `layout_of_rows` says: one rank's block after the other. Otherwise
/// rows are in the grid's order. Sends nothing; differentiable.
/// @param of_rows   that layout, if it is known
at::Tensor rows_of_grid(const at::Tensor& grid, const SpecPtr& of_rows = nullptr);

/// The inverse. @param of_grid   the grid's layout; null for a plain tensor
at::Tensor grid_of_rows(const at::Tensor& rows, at::IntArrayRef extents, const SpecPtr& of_grid);

}  // namespace meshard
