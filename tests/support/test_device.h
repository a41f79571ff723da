// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>

#include <cstdlib>

namespace meshard {

/// Where tensors of the tests lie that run on any device: MESHARD_TEST_DEVICE, the CPU if unset. Without an index: each
/// rank's own device.
inline at::Device device_of_tests()
{
    const char* name = std::getenv("MESHARD_TEST_DEVICE");
    return at::Device(name ? name : "cpu");
}

/// Whether this process has such a device.
inline bool has_device_of_tests()
{
    const auto type = device_of_tests().type();
    return type == at::kCPU || (at::getAccelerator() == type && at::accelerator::deviceCount() > 0);
}

}  // namespace meshard
