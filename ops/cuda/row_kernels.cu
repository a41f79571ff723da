// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/tile_launch_cuda.h"

namespace meshard {

using Executor = CudaExecutor;
using Launcher = tiles::CudaLauncher;

}  // namespace meshard

#include "ops/cuda/row_kernels_body.h"
