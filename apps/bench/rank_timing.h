// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <functional>
#include <vector>

namespace meshard {

/// For an even number of values the upper of the two middle ones.
double median(std::vector<double> values);

/// Returns when all that was queued on a device is done, which may be long after the host has queued it.
void wait_for_device(const at::Device& device);

/// Seconds of the clock on the wall, and those in which this process's threads computed.
struct Seconds {
    double wall = 0, cpu = 0;
};

Seconds seconds_of(const std::function<void()>& work);

/// Seconds of the slowest rank; all ranks start together. Collective.
double seconds_together(const DeviceMesh& mesh, const std::function<void()>& work);

}  // namespace meshard
