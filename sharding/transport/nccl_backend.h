// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/transport/device_transport.h"

namespace meshard {

/// NCCL, for tensors of CUDA GPUs. It connects with the current GPU. In a build for CPUs `why_not` returns the reason.
///
/// If a rank has ended or is late, NCCL closes the group's connections instead of ending the process (unless
/// TORCH_NCCL_ASYNC_ERROR_HANDLING is set), so that the next collective throws with a message that names the rank.
DeviceTransport nccl_transport();

}  // namespace meshard
