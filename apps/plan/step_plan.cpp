// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/step_plan.h"

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

/// Ghosts of a compact shard of n points: one layer of neighbours. In a volume 3 n^(2/3) (cuts of tetrahedra by METIS; a cube of n hexahedra has 6 n^(2/3)), on
/// a surface 4 n^(1/2), the edge of a square.
double ghosts_of(const PlanRequest& request, double points)
{
    if (request.num_ranks == 1) return 0;
    if (request.ghosts) return *request.ghosts;
    const auto layer = request.on_surface ? 4 * std::sqrt(points) : 3 * std::pow(points, 2.0 / 3);
    return std::min(layer, request.points - points);
}

}  // namespace

double largest_share(const PlanRequest& request)
{
    if (request.num_ranks == 1) return request.points;
    return std::min(request.points, std::ceil(request.imbalance * request.points / static_cast<double>(request.num_ranks)));
}

StepPlan step_plan(const PlannedModel& model, const PlanRequest& request, const StepRates& rates)
{
    StepPlan plan;
    plan.request = request;
    plan.points = largest_share(request);
    const auto ghosts = has_ghosts(model) ? ghosts_of(request, plan.points) : 0.0;
    plan.work = step_work(model, {.points = plan.points,
                                  .num_ranks = request.num_ranks,
                                  .ghosts = ghosts,
                                  .memory = request.memory,
                                  .form = rates.form(),
                                  .bytes_per_number = request.bytes_per_number});
    for (const auto& operation : plan.work.operations) plan.seconds_of_parts[operation.part] += rates.seconds(operation);
    plan.seconds_of_parts[step_part::kSmall] += rates.seconds_of_small_calls(plan.work.small_calls);
    for (const auto& message : plan.work.messages) plan.message_seconds += rates.seconds(message, request.num_ranks);
    plan.seconds = plan.message_seconds;
    for (const auto& [part, seconds] : plan.seconds_of_parts) plan.seconds += seconds;
    plan.memory_bytes = plan.work.memory.bytes(plan.points + ghosts);
    plan.fits = plan.memory_bytes <= rates.memory_bytes();
    return plan;
}

double efficiency(const PlannedModel& model, const StepPlan& plan, const StepRates& rates)
{
    auto alone = plan.request;
    alone.num_ranks = 1;
    return step_plan(model, alone, rates).seconds / (static_cast<double>(plan.request.num_ranks) * plan.seconds);
}

std::optional<std::int64_t> fewest_ranks(const PlannedModel& model, PlanRequest request, const StepRates& rates, std::int64_t most)
{
    const auto fits = [&](std::int64_t num_ranks) {
        request.num_ranks = num_ranks;
        return step_plan(model, request, rates).fits;
    };
    if (!fits(most)) return std::nullopt;
    std::int64_t too_few = 0, enough = most;
    while (enough - too_few > 1) {
        const auto middle = too_few + (enough - too_few) / 2;
        (fits(middle) ? enough : too_few) = middle;
    }
    return enough;
}

}  // namespace meshard
