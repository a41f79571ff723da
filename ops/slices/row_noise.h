// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "sharding/tensor/shard_spec.h"

namespace meshard {

/// One draw of a RowNoise for the rows of this rank, (B, N, ...): any part of it whenever it is wanted, and the same numbers each time.
class RowDraw {
public:
    /// How far apart the numbers lie in memory.
    struct Steps {
        std::int64_t row = 1;      ///< from one row to the next
        std::int64_t number = 1;   ///< from one number of a row to the next
    };

    /// Writes `width` numbers in [0, 1) of each of the rows `first` ... `first + count - 1` of a sample, by this rank's numbering. T: float or double.
    template <class T>
    void fill(std::int64_t sample, std::int64_t first, std::int64_t count, std::int64_t width, Steps steps, T* out) const;

private:
    friend class RowNoise;

    std::uint64_t key_ = 0;
    std::int64_t first_sample_ = 0, first_id_ = 0;
    std::span<const std::int64_t> ids_;   // of the rows; none: one after the other from first_id_ on
    SpecPtr rows_;                        // holds the ids
};

/// Uniform numbers that belong to rows: each is a function of the seed, the number of the draw, the row's global id, its sample in the batch and its place in
/// the row, and of nothing else. However rows and batch are cut, and however many ranks there are, a row gets the same numbers; no rank draws those of other
/// ranks' rows.
class RowNoise {
public:
    explicit RowNoise(std::uint64_t seed) : seed_(seed) {}

    /// Whose rows the next draws are for: a tensor (B, N, ...) as the model was given it, which knows the rows' ids.
    void set_rows(const at::Tensor& points);

    /// Numbers in [0, 1) of the shape, type and placement of `like`, (B, N, ...). The draws are counted: all ranks draw alike.
    /// Rows that are cut otherwise than those of `set_rows`, or whose ids are not known, count by their place in the whole.
    at::Tensor draw(const at::Tensor& like);

    /// The same numbers without their memory, for rows (B, N, ...) of any width.
    RowDraw next_draw(const at::Tensor& rows);

private:
    std::uint64_t seed_ = 0, num_draws_ = 0;
    SpecPtr rows_;
};

}  // namespace meshard
