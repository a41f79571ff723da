// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

/// How the kernels for tensor cores store points and multiply. Sums are of fp32 throughout.
enum class TileMath : std::uint8_t {
    Bfloat16,
    Float16,
    Tf32,    ///< points of fp32, rounded to TF32 in products
    Float32  ///< points of fp32, each product by three of TF32: nearly all of fp32's precision
};

}  // namespace meshard
