// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_product.h"

namespace meshard {

#if defined(__x86_64__)

void avx512_tile_product(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix a, StridedMatrix b,
                         const Addends<float>& addends, float* c, std::int64_t row_c);

TileProduct tile_product()
{
    static const TileProduct found = __builtin_cpu_supports("avx512f") ? avx512_tile_product : nullptr;
    return found;
}

#else

TileProduct tile_product()
{
    return nullptr;
}

#endif

}  // namespace meshard
