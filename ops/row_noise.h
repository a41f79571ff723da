// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "sharding/shard_spec.h"

namespace meshard {

/// Uniform numbers that belong to rows: each is a function of the seed, the number of the draw, the row's global id and its place in the row, and of
/// nothing else. However rows are cut, and however many ranks there are, a row gets the same numbers; no rank draws those of other ranks' rows.
class RowNoise {
public:
    explicit RowNoise(std::uint64_t seed) : seed_(seed) {}

    /// Whose rows the next draws are for: a tensor (B, N, ...) as the model was given it, which knows the rows' ids.
    void set_rows(const at::Tensor& points);

    /// Numbers in [0, 1) of the shape, type and placement of `like`, (B, N, ...). The draws are counted: all ranks draw alike.
    /// Rows that are cut otherwise than those of `set_rows`, or whose ids are not known, count by their place in the whole.
    at::Tensor draw(const at::Tensor& like);

private:
    std::uint64_t seed_ = 0, num_draws_ = 0;
    SpecPtr rows_;
};

}  // namespace meshard
