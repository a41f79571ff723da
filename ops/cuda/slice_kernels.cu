// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_executor.h"
#include "ops/cuda/kernels.h"

namespace meshard {

MESHARD_SLICE_KERNELS()

}  // namespace meshard
