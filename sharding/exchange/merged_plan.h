// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/exchange/exchange_plan.h"

#include <memory>
#include <span>
#include <vector>

namespace meshard {

/// One plan that exchanges the rows of several plans.
struct MergedPlan {
    std::shared_ptr<const ExchangePlan> plan;
    /// `ghost_places[p]`: which ghosts of `plan` are those of plan p, in the order of p; int64.
    std::vector<at::Tensor> ghost_places;
};

/// Plans over the rows of several clouds, which lie one cloud after the other: all ghosts in one message a rank. Not
/// collective.
/// @throws InvalidInput if the plans differ in their group, or if there are none
MergedPlan stack_plans(std::span<const std::shared_ptr<const ExchangePlan>> plans);

}  // namespace meshard
