// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/segment_reduce.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace meshard {

/// What the neighbours of each query add up to, their mean or their extreme, with the entries that are it: the same numbers as
/// `segment_reduce(gather_neighbors(features, neighbors), neighbors.offsets, reduction)`. Queries without ghosts among their neighbours are reduced while
/// the ghosts travel, and in backward while their gradients do; the rows of all entries never lie in memory at once with those of the others.
/// @throws InvalidInput if the features have other rows than the points
SegmentResult reduce_neighbors(const at::Tensor& features, const Neighbors& neighbors, SegmentReduction reduction);

/// Owned rows and their ghosts where `plan` is not null. A row that every rank holds has the sum of the gradients of all ranks' queries.
at::Tensor rows_with_ghosts(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan, const RankGroup& queries_group);

/// Whether `gather_neighbors` sends messages that interior work can hide: points are cut, and so are queries.
bool ghosts_travel(const Neighbors& neighbors);

/// This rank's rows of what lies as the points did, of all clouds of a batch. @throws InvalidInput if it does not
at::Tensor own_rows_of(const char* where, const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
