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

/// Divides the queries of a search into those without ghosts among their neighbours (inner) and the others (border).
/// Computed once on the host, and kept on the device of the features.
class QueryOrder {
public:
    /// Some of the queries: the indices of their entries, and the start of each query's entries, as in
    /// `Neighbors::offsets`.
    struct Part {
        at::Tensor entries, offsets;
    };
    struct Parts {
        Part inner, border;  ///< `inner` is undefined if it has all queries
        /// (queries): index of each query among the inner ones followed by the border ones; undefined if all are inner.
        at::Tensor position;
    };

    /// The parts for the present entries; computed again if entries or device have changed since the last call.
    Parts of(const Neighbors& neighbors, const at::Device& device);

private:
    std::mutex mutex_;
    at::Tensor offsets_, rows_;  // the neighbours for which the parts were computed
    std::uint32_t offsets_version_ = 0, rows_version_ = 0;
    std::optional<at::Device> device_;
    Parts parts_;
};

/// Sum, mean or extreme of the features of each query's neighbours; equal to `segment_reduce(gather_neighbors(features,
/// neighbors), neighbors.offsets, reduction)`. Queries without ghosts among their neighbours are reduced while ghosts
/// are received, in backward while gradients of ghosts are. Entries of queries with ghosts are gathered after the
/// others were freed.
/// @throws InvalidInput if the features have other rows than the points
SegmentResult reduce_neighbors(const at::Tensor& features, const Neighbors& neighbors, SegmentReduction reduction);

/// Owned rows, followed by ghosts unless `plan` is null. If every rank holds all rows, backward sums their gradients
/// over all ranks' queries.
at::Tensor rows_with_ghosts(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan, const RankGroup& queries_group);

/// Returns whether `gather_neighbors` exchanges ghosts while inner work can be done: points and queries are both cut.
bool exchanges_ghosts(const Neighbors& neighbors);

/// This rank's rows of features with the points' layout, for all clouds of a batch. @throws InvalidInput for another
/// layout
at::Tensor own_rows_of(const char* where, const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
