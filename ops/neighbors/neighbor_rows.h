// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbors.h"

#include <ATen/core/Tensor.h>

#include <memory>

namespace meshard {

/// Owned rows, followed by ghosts unless `plan` is null. If every rank holds the rows, backward sums their gradients
/// over all ranks' queries.
at::Tensor rows_with_ghosts(const at::Tensor& rows, const std::shared_ptr<const ExchangePlan>& plan,
                            const RankGroup& queries_group);

/// Returns whether `gather_neighbors` exchanges ghosts while inner work can be done: points and queries are both cut.
bool exchanges_ghosts(const Neighbors& neighbors);

/// This rank's rows of features with the points' layout, for all clouds of a batch. @throws InvalidInput for another
/// layout
at::Tensor own_rows_of(const char* where, const at::Tensor& features, const Neighbors& neighbors);

}  // namespace meshard
