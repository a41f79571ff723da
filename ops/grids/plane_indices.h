// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ops/grids/range_exchange.h"

namespace meshard {

/// Flat indices into a box of a grid, as flat indices into the whole grid. `box` says where the box lies along each of the grid's
/// dimensions, `padded` how many entries it has there (more than its range where it is padded at its end), `whole` how many the grid has.
at::Tensor indices_in_whole(const at::Tensor& indices, const std::vector<Range>& box, const std::vector<std::int64_t>& padded,
                            const std::vector<std::int64_t>& whole);

/// The adjoint of picking values of a box by `indices` (flat, into the whole grid): zeros with `gradient` added where the picks were. Leading
/// dimensions of `gradient` are kept, its last ones (as many as `box` has) become the box. Picks outside of the box are left out.
at::Tensor scatter_to_box(const at::Tensor& gradient, const at::Tensor& indices, const std::vector<Range>& box,
                          const std::vector<std::int64_t>& whole);

}  // namespace meshard
