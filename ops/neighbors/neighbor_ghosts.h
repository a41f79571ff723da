// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbor_request.h"
#include "sharding/exchange/exchange_plan.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// What a search on cut points works on: own points and ghosts, ordered by global id.
template <class T>
struct NeighborCandidates {
    std::shared_ptr<const ExchangePlan> plan{};
    std::vector<T> points{};
    std::vector<std::int64_t> ids{}, rows{};  ///< of each: global id, and row among owned and ghosts
};

/// Brings the points of other ranks that some query of this rank needs. Collective over `group`, among which the points are cut.
///
/// Queries ask the ranks that may have points near them (ops/neighbors/neighbor_questions.h). Those answer with the points that some query needs, once each.
/// Where points look within a radius for each other, one rank of two asks, and knows from the answers which of its points the other needs.
///
/// They are remembered as long as something holds them: a search for the same among the same rows, on every rank, finds them and sends two numbers.
template <class T>
std::shared_ptr<const NeighborCandidates<T>> neighbor_candidates(const NeighborRequest& request, const NeighborInput& points, const NeighborInput& queries,
                                                                 const RankGroup& group);

}  // namespace meshard
