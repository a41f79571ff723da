// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tile_launch_host.h"

namespace meshard {

using Executor = HostExecutor;
using Launcher = tiles::HostLauncher;

}  // namespace meshard

#include "ops/cuda/row_kernels_body.h"
#include "ops/cuda/tile_kernels_body.h"
