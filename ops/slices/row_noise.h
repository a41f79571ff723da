// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

namespace meshard {

struct RowNumbers;

/// One draw of a RowNoise for the rows of this rank, (B, N, ...). Any part of it can be computed at any time, and again
/// with the same numbers.
class RowDraw {
public:
    /// Strides of `out`.
    struct Strides {
        std::int64_t row = 1;     ///< from one row to the next
        std::int64_t number = 1;  ///< from one number of a row to the next
    };

    /// Writes `width` numbers in [0, 1) for each of the local rows `first` ... `first + count - 1` of a sample. T:
    /// float or double.
    template <class T>
    void fill(std::int64_t sample, std::int64_t first, std::int64_t count, std::int64_t width, Strides strides,
              T* out) const;

    /// All numbers of this rank's rows (B, N, ...), on any device, in float or double.
    at::Tensor numbers(at::IntArrayRef sizes, const at::TensorOptions& options) const;

private:
    friend class RowNoise;

    RowNumbers numbers_of(const std::int64_t* ids) const;

    std::uint64_t key_ = 0;
    std::int64_t first_sample_ = 0, first_id_ = 0;
    std::span<const std::int64_t> ids_;    // global ids of the rows; empty: consecutive from first_id_ on
    std::shared_ptr<const IndexMap> map_;  // keeps the memory of ids_ alive
    struct DeviceIds;
    std::shared_ptr<DeviceIds> device_ids_;
};

/// Uniform random numbers for rows: each depends only on the seed, the index of the draw, the row's global id, its
/// sample in the batch and its position in the row. A row gets the same numbers for any sharding of rows and batch, any
/// number of ranks and on any device; a rank draws the numbers of its own rows only.
class RowNoise {
public:
    explicit RowNoise(std::uint64_t seed);

    /// Draws from here on as one that was made with this seed. Copies of the rows' ids on devices are kept.
    void reseed(std::uint64_t seed);

    /// Sets the rows of the next draws: those of a tensor (B, N, ...) as passed to the model, whose spec has the global
    /// ids. The first tensor with ids is used; some may be undefined.
    void set_rows(at::TensorList points);

    /// Draws numbers in [0, 1) with the shape, type, device and placement of `like`, (B, N, ...), on its device. Draws
    /// are counted: all ranks must make the same draws. Rows with another sharding than those of `set_rows`, or without
    /// global ids, are identified by their position in the whole.
    at::Tensor draw(const at::Tensor& like);

    /// The next draw for rows (B, N, ...) of any width, to be computed later (`RowDraw::fill`).
    RowDraw next_draw(const at::Tensor& rows);

private:
    std::uint64_t seed_ = 0, num_draws_ = 0;
    /// Ids of rows that are cut in blocks, as of a grid whose columns are cut.
    const std::shared_ptr<const IndexMap>& ids_in_blocks(const AxisLayout& layout, std::int64_t coordinate);

    SpecPtr rows_;
    AxisLayout in_blocks_;  // the layout that `blocks_` is of
    std::shared_ptr<const IndexMap> blocks_;
    std::shared_ptr<RowDraw::DeviceIds> device_ids_;
};

}  // namespace meshard
