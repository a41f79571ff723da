// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/grids/range_exchange.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Converts flat indices into a box of a grid to flat indices into the whole grid. For each dimension of the grid `box`
/// is the box's range, `padded` its number of entries (more than the range if the box is padded at its end), `whole`
/// the grid's number of entries.
at::Tensor indices_in_whole(const at::Tensor& indices, const std::vector<Range>& box,
                            const std::vector<std::int64_t>& padded, const std::vector<std::int64_t>& whole);

/// The adjoint of gathering values from a box by `indices` (flat, into the whole grid): zeros, with `gradient` added at
/// the indices. The leading dimensions of `gradient` are kept; its last ones (as many as `box` has) become the box.
/// Indices outside the box are ignored.
at::Tensor scatter_to_box(const at::Tensor& gradient, const at::Tensor& indices, const std::vector<Range>& box,
                          const std::vector<std::int64_t>& whole);

}  // namespace meshard
