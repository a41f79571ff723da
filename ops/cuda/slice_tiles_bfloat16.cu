// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/slice_tile_instances.h"

namespace meshard::tiles {

MESHARD_SLICE_TILES(, TileMath::Bfloat16)

}  // namespace meshard::tiles
