// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"
#include "ops/rows/segment_reduce.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace meshard {

/// Queries of a search, those that need no ghosts first, found by the host once and kept on the device of the features.
class QueryOrder {
public:
    /// Some of the queries: their entries among all, and where those of each begin, as in `Neighbors::offsets`.
    struct Part {
        at::Tensor entries, offsets;
    };
    struct Parts {
        Part inner, border;   ///< without ghosts and with; `inner` undefined where it is all queries
        at::Tensor position;  ///< (queries), of each query among the inner ones followed by the border ones; undefined where all are inner
    };

    /// For the entries as they are now: found again if they, or the device, are others than in the call before.
    Parts of(const Neighbors& neighbors, const at::Device& device);

private:
    std::mutex mutex_;
    at::Tensor offsets_, rows_;  // of which the parts are
    std::uint32_t offsets_version_ = 0, rows_version_ = 0;
    std::optional<at::Device> device_;
    Parts parts_;
};

/// Sum, mean or extreme of the features of each query's neighbours; equal to
/// `segment_reduce(gather_neighbors(features, neighbors), neighbors.offsets, reduction)`. Queries without ghosts among their neighbours are reduced while
/// ghosts are received, and in backward while gradients of ghosts are. Entries of queries with ghosts are gathered after the others were freed.
/// @throws InvalidInput if the features have other rows than the points
SegmentResult reduce_neighbors(const at::Tensor& features, const Neighbors& neighbors, SegmentReduction reduction);

/// Owned rows, followed by ghosts unless `plan` is null. If every rank holds the rows, backward sums their gradients over all ranks' queries.
at::Tensor rows_with_ghosts(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan, const RankGroup& queries_group);

/// Whether `gather_neighbors` exchanges ghosts with which inner work can overlap: points are cut, and so are queries.
bool exchanges_ghosts(const Neighbors& neighbors);

/// This rank's rows of features with the points' layout, of all clouds of a batch. @throws InvalidInput for another layout
at::Tensor own_rows_of(const char* where, const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
