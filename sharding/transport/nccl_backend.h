// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/device_transport.h"

#include <string>

namespace meshard {

/// NCCL, for tensors of GPUs of CUDA. It connects with the GPU that is current. In a build for CPUs `why_not` says so.
///
/// Where a rank has ended or is too late, NCCL closes the group's connections instead of ending the process (unless TORCH_NCCL_ASYNC_ERROR_HANDLING is set),
/// so that the next collective throws, and the message can name the rank.
DeviceTransport nccl_transport();

}  // namespace meshard
