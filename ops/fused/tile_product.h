// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// A matrix in memory: entry (i, j) at data[i * row_stride + j * column_stride]. One of the two strides is 1.
struct StridedMatrix {
    const float* data;
    std::int64_t row_stride, column_stride;
};

/// Terms that are added to a product (m, n); null: none.
template <class T>
struct Addends {
    const T* to_rows = nullptr;     ///< (m), a number for each row
    const T* to_columns = nullptr;  ///< (n), a number for each column
    const T* to_all = nullptr;      ///< (m, n) with `row_stride`; may be the result's own memory
    std::int64_t row_stride = 0;    ///< row stride of `to_all`
};

/// c = a b + addends; c (m, n) with row stride `row_c`, inner extent k. Runs on the calling thread.
using TileProduct = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, StridedMatrix a, StridedMatrix b,
                             const Addends<float>& addends, float* c, std::int64_t row_c);

/// Our own product for matrices of a tile's size, with AVX-512; null on processors without it, where the BLAS is used.
/// MKL uses no such kernels on processors of other makers than Intel, and has a high cost per call for matrices as
/// small as a head's: on such a processor most products of a block take 1.05 to 1.46 times as long with MKL. If b has a
/// few columns, as in a model's last layer, MKL is faster (0.86 of our time at four), which does not show in the time
/// of a block.
TileProduct tile_product();

}  // namespace meshard
