// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <ATen/core/Tensor.h>

#include "sharding/tensor/shard_spec.h"

namespace meshard {

/// Hands out rows of a whole that may lie nowhere in memory: those of the given ids, (ids, ...), dense and plain, each time of the same
/// shape but for their number, and of the same type.
using RowProvider = std::function<at::Tensor(std::span<const std::int64_t> ids)>;

/// The whole of rank `source_rank` of the device mesh's ranks as a sharded tensor: the source sends every rank its part and nothing
/// else, so that a rank other than the source never holds more than its part and one message.
///
/// `spec` says how the result lies: any Shards and Replicates, chosen extents, and with an index map the rows of the axis `domain` by
/// their global ids: rank r gets the rows `owned()` of its map. Only the source passes a defined tensor. Collective over all ranks;
/// differentiable: the gradient arrives at the source, whole; where an axis replicates, every rank's gradient is the same and counts
/// once. If the source's tensor takes gradients, every rank must call backward.
/// @throws InvalidInput on every rank if the source has no tensor, its shape does not fit the layout, or the layout has a pending axis.
at::Tensor scatter_rows(const at::Tensor& whole, int source_rank, const SpecPtr& spec);

/// The same from a provider on the source (others may pass an empty one), for a layout that cuts dimension 0 only: in messages of at
/// most `rows_per_message` rows, so that the source too holds no more than its part and one message. Not differentiable.
at::Tensor scatter_rows(const RowProvider& provider, int source_rank, const SpecPtr& spec, std::int64_t rows_per_message = 1 << 16);

}  // namespace meshard
