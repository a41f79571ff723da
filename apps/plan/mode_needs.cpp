// SPDX-License-Identifier: Apache-2.0
#include "apps/plan/mode_needs.h"

#include "apps/plan/step_work.h"
#include "partition/error.h"

namespace meshard {

std::vector<ModeNeed> counted_modes(const std::string& name, const nlohmann::json& arguments, std::int64_t num_inputs, std::int64_t num_outputs,
                                    std::int64_t num_ranks, double points, double bytes_per_number)
{
    std::vector<ModeNeed> needs;
    try {
        const auto model = planned_model(name, arguments, {.inputs = num_inputs, .outputs = num_outputs});
        for (const auto mode : memory_modes(model)) {
            const auto memory = step_work(model, {.points = points, .num_ranks = num_ranks, .memory = mode, .bytes_per_number = bytes_per_number}).memory;
            needs.push_back({std::string(name_of(mode)), memory.bytes_per_point(), memory.parameters + memory.workspace});
        }
    } catch (const InvalidInput&) {  // this model's work is not counted
        needs.clear();
    }
    return needs;
}

}  // namespace meshard
