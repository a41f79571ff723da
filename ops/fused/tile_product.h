// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// A matrix as it lies in memory: entry (i, j) at data[i * row + j * column], of which one distance is 1.
struct LyingMatrix {
    const float* data;
    std::int64_t row, column;
};

/// What is added to a product (m, n), each unless null.
template <class T>
struct Addends {
    const T* to_rows = nullptr;      ///< (m), a number for each row
    const T* to_columns = nullptr;   ///< (n), a number for each column
    const T* to_all = nullptr;       ///< (m, n), `row` from row to row; may be where the result goes
    std::int64_t row = 0;
};

/// c = a b + addends; c (m, n) with `row_c` from row to row, inner extent k. On the calling thread.
using TileProduct = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, LyingMatrix a, LyingMatrix b, const Addends<float>& addends, float* c, std::int64_t row_c);

/// Our own product for matrices of a tile's size, with AVX-512; null where the BLAS is to do it. MKL has no such kernels for processors that are not Intel's,
/// and starts slowly on matrices as small as a head's: on such a processor most of a block's products take 1.05 to 1.46 times as long with it. Where b
/// has a handful of columns, as for a model's last layer, MKL is the faster (0.86 of our time at four), which a block's time does not show.
TileProduct tile_product();

}  // namespace meshard
