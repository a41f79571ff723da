// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// A matrix as it lies in memory: entry (i, j) at data[i * row + j * column], of which one distance is 1.
struct LyingMatrix {
    const float* data;
    std::int64_t row, column;
};

/// c = a b, or c += a b; c (m, n) with `row_c` from row to row, inner extent k. On the calling thread.
using TileProduct = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, LyingMatrix a, LyingMatrix b, bool adds, float* c, std::int64_t row_c);

/// Our own product for matrices of a tile's size, with AVX-512; null where the BLAS is to do it. MKL has no such kernels for processors that are not Intel's,
/// and starts slowly on matrices as small as a head's: on such a processor a block's products take 1.05 to 1.46 times as long with it.
TileProduct tile_product();

}  // namespace meshard
