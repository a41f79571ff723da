// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <functional>

namespace meshard {

/// Waits until all work that was queued on a device is done.
void wait_for_device(const at::Device& device);

/// Wall-clock time, and CPU time of this process's threads.
struct Seconds {
    double wall = 0, cpu = 0;
};

Seconds seconds_of(const std::function<void()>& work);

/// Runs `work` on all ranks, which start together, and returns the seconds of the slowest one. Collective.
double seconds_together(const DeviceMesh& mesh, const std::function<void()>& work);

}  // namespace meshard
