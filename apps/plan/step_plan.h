// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/step_rates.h"
#include "apps/plan/step_work.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// What is to be trained on.
struct PlanRequest {
    double points = 0;  ///< of the whole mesh
    std::int64_t num_ranks = 1;
    MemoryMode memory = MemoryMode::Stored;
    double imbalance = 1.03;  ///< points of the largest shard divided by an equal share
    double bytes_per_number = 4;
    bool on_surface = false;       ///< a mesh of faces: its shards have fewer ghosts
    std::optional<double> ghosts;  ///< of the shard with most, if it is known
};

/// A training step as counted work over rates: the slowest rank's.
struct StepPlan {
    PlanRequest request;
    double points = 0;                               ///< of the largest shard
    StepWork work;                                   ///< of that shard's rank
    std::map<std::string, double> seconds_of_parts;  ///< by part of the model; operators on small tensors are `small operators`
    double message_seconds = 0;
    double seconds = 0;  ///< of a step: all of these
    double memory_bytes = 0;
    bool fits = true;
};

StepPlan step_plan(const PlannedModel& model, const PlanRequest& request, const StepRates& rates);

/// Points of the largest shard.
double largest_share(const PlanRequest& request);

/// Seconds of a step on one rank with unlimited memory, divided by the seconds of all ranks added up.
double efficiency(const PlannedModel& model, const StepPlan& plan, const StepRates& rates);

/// The fewest ranks, up to `most`, on which the points fit; nothing if they do not fit on so many.
std::optional<std::int64_t> fewest_ranks(const PlannedModel& model, PlanRequest request, const StepRates& rates, std::int64_t most);

}  // namespace meshard
