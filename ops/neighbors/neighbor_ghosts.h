// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/neighbors/neighbor_request.h"
#include "sharding/exchange/exchange_plan.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace meshard {

/// The points that this rank searches if points are cut: its own and ghosts, sorted by global id.
template <class T>
struct NeighborCandidates {
    std::shared_ptr<const ExchangePlan> plan{};
    std::vector<T> points{};
    std::vector<std::int64_t> ids{}, rows{};  ///< for each point: global id, and row among owned points and then ghosts
};

/// Receives from other ranks the points that some query of this rank needs. Collective over `group`, the ranks over
/// which points are cut.
///
/// Each rank sends its queries to the ranks that may have points near them (ops/neighbors/neighbor_questions.h). Those
/// answer with the points that some query needs, each once. In a radius search of points among themselves only one rank
/// of each pair asks: from the answer it knows which of its own points the other needs.
///
/// Candidates are cached as long as the caller holds them: the same search among the same rows on every rank reuses
/// them and sends two numbers only.
template <class T>
std::shared_ptr<const NeighborCandidates<T>> neighbor_candidates(const NeighborRequest& request,
                                                                 const NeighborInput& points,
                                                                 const NeighborInput& queries, const RankGroup& group);

}  // namespace meshard
