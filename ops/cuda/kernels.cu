// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/kernels.h"

#include "ops/cuda/cuda_executor.h"

namespace meshard {

MESHARD_KERNELS()

}  // namespace meshard
