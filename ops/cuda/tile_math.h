// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// How the kernels for tensor cores store points and multiply. Sums are always in fp32.
enum class TileMath : std::uint8_t {
    Bfloat16,
    Float16,
    Tf32,    ///< fp32 points, rounded to TF32 in products
    Float32  ///< fp32 points; each product is computed by three in TF32, with nearly the precision of fp32
};

}  // namespace meshard
