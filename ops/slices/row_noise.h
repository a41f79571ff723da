// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace meshard {

/// One draw of a RowNoise for the rows of this rank, (B, N, ...). Any part of it can be computed at any time, and again with the same numbers.
class RowDraw {
public:
    /// Strides of `out`.
    struct Strides {
        std::int64_t row = 1;     ///< from one row to the next
        std::int64_t number = 1;  ///< from one number of a row to the next
    };

    /// Writes `width` numbers in [0, 1) of each of the rows `first` ... `first + count - 1` of a sample, by this rank's numbering. T: float or double.
    template <class T>
    void fill(std::int64_t sample, std::int64_t first, std::int64_t count, std::int64_t width, Strides strides, T* out) const;

private:
    friend class RowNoise;

    std::uint64_t key_ = 0;
    std::int64_t first_sample_ = 0, first_id_ = 0;
    std::span<const std::int64_t> ids_;  // global ids of the rows; none: consecutive from first_id_ on
    SpecPtr rows_;                       // keeps the memory of ids_ alive
};

/// Uniform random numbers for rows: each depends only on the seed, the index of the draw, the row's global id, its sample in the batch and its position in
/// the row. A row gets the same numbers for any cut of rows and batch and any number of ranks; a rank draws the numbers of its own rows only.
class RowNoise {
public:
    explicit RowNoise(std::uint64_t seed) : seed_(seed) {}

    /// Sets the rows of the next draws: those of a tensor (B, N, ...) as the model got it, whose spec has the global ids.
    void set_rows(const at::Tensor& points);

    /// Numbers in [0, 1) of the shape, type and placement of `like`, (B, N, ...). Draws are counted: all ranks must make the same draws.
    /// Rows that are cut in another way than those of `set_rows`, or without global ids, are identified by their position in the whole.
    at::Tensor draw(const at::Tensor& like);

    /// The next draw for rows (B, N, ...) of any width, to be computed later (`RowDraw::fill`).
    RowDraw next_draw(const at::Tensor& rows);

private:
    std::uint64_t seed_ = 0, num_draws_ = 0;
    SpecPtr rows_;
};

}  // namespace meshard
