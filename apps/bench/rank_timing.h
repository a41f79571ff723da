// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/ranks/device_mesh.h"

#include <functional>
#include <vector>

namespace meshard {

/// The upper one of an even number of values.
double median(std::vector<double> values);

/// Returns when all that was queued on a device is done. A device works on while the host goes on: a time ends then.
void wait_for_device(const at::Device& device);

/// Seconds of the slowest rank, all starting together. Collective.
double seconds_together(const DeviceMesh& mesh, const std::function<void()>& work);

}  // namespace meshard
