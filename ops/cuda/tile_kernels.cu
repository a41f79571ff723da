// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/slice_tile_instances.h"

namespace meshard {

namespace tiles {

MESHARD_SLICE_TILES(extern, TileMath::Bfloat16)
MESHARD_SLICE_TILES(extern, TileMath::Float16)
MESHARD_SLICE_TILES(extern, TileMath::Tf32)
MESHARD_SLICE_TILES(extern, TileMath::Float32)

}  // namespace tiles

using Executor = CudaExecutor;
using Launcher = tiles::CudaLauncher;

}  // namespace meshard

#include "ops/cuda/tile_kernels_body.h"
