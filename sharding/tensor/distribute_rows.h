// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/tensor/shard_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>

namespace meshard {

/// Returns the rows with the given global ids, (ids, ...), dense and plain; the shape of a row and the type are the
/// same in every call. The whole need not be in memory.
using RowProvider = std::function<at::Tensor(std::span<const std::int64_t> ids)>;

/// Distributes the tensor `whole` of rank `source_rank`, numbered within the device mesh: the source sends every rank
/// its part only, so that no other rank holds more than its part and one message.
///
/// `spec` is the layout of the result: Shards and Replicates with any extents. With an index map, rank r of the axis
/// `domain` gets the rows whose global ids are `owned()` of its map. Only the source passes a defined tensor.
/// Collective over all ranks; differentiable: the source receives the whole gradient; along a Replicate axis every
/// rank's gradient is the same and is counted once. If the source's tensor requires gradients, every rank must call
/// backward.
/// @throws InvalidInput on every rank if the source has no tensor, its shape does not fit the layout, or the layout has
/// a pending axis.
at::Tensor distribute_rows(const at::Tensor& whole, int source_rank, const SpecPtr& spec);

/// Distributes rows that `provider` returns on the source (others may pass an empty one), for a layout that shards
/// dimension 0 only. Rows are sent in messages of at most `rows_per_message` rows, so that the source too holds no more
/// than its part and one message. Not differentiable.
at::Tensor distribute_rows(const RowProvider& provider, int source_rank, const SpecPtr& spec,
                           std::int64_t rows_per_message = 1 << 16);

}  // namespace meshard
