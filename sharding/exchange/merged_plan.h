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

/// Merges plans over the same owned rows, so that a row that several plans send to a rank is sent once. Collective.
/// @throws InvalidInput on every rank if the plans differ in group or number of owned rows, or if there are none
MergedPlan merge_plans(std::span<const std::shared_ptr<const ExchangePlan>> plans);

/// Merges plans of several clouds whose rows are concatenated, so that each rank gets all ghosts in one message. Not
/// collective.
/// @throws InvalidInput if the plans differ in their group, or if there are none
MergedPlan stack_plans(std::span<const std::shared_ptr<const ExchangePlan>> plans);

}  // namespace meshard
