// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/plan/machine_rates.h"
#include "apps/plan/step_plan.h"
#include "sharding/ranks/device_mesh.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshard {

/// A step that is measured and predicted.
struct CheckedStep {
    std::string model;
    nlohmann::json arguments;
    std::int64_t points = 0, num_ranks = 1;
    MemoryMode memory = MemoryMode::Stored;
    double measured_seconds = 0;       ///< of CPU where ranks have one thread each, of the rank that takes most
    double measured_wall_seconds = 0;  ///< of the clock on the wall, other programs' time included
    double predicted_seconds = 0;

    double ratio() const { return predicted_seconds / measured_seconds; }
};

/// Twelve configurations: models, channels, slices, layers, points, memory modes, one rank and two.
std::vector<CheckedStep> configurations_to_check();

/// Measures one configuration on the ranks of `mesh`, and predicts it with `rates`, measured on these ranks, too. The least of `num_repeats` steps counts.
/// Collective over `mesh`.
void check_step(CheckedStep& step, const std::shared_ptr<const DeviceMesh>& mesh, const MachineRates& rates, int num_repeats);

}  // namespace meshard
