// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/exchange/exchange_plan.h"

#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// Several plans as one.
struct MergedPlan {
    std::shared_ptr<const ExchangePlan> plan;
    std::vector<at::Tensor> ghost_places;  ///< for each of the plans: which of the merged one's ghosts are its own, in its order; int64
};

/// Plans over the rows of several clouds, which lie one cloud after the other: all ghosts in one message a rank. Not collective.
/// @throws InvalidInput if the plans differ in their group, or if there are none
MergedPlan stack_plans(std::span<const std::shared_ptr<const ExchangePlan>> plans);

}  // namespace meshard
