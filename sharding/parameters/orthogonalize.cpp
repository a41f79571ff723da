// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/orthogonalize.h"

#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace meshard {

at::Tensor orthogonalized(const at::Tensor& matrices)
{
    constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kLeastNorm = 1e-7;
    const at::NoGradGuard no_grad;
    // A tall matrix is transposed, so that products have the size of the shorter side.
    const bool is_tall = matrices.size(-2) > matrices.size(-1);
    auto x = is_tall ? matrices.transpose(-2, -1) : matrices;
    x = x / at::linalg_vector_norm(x, 2, {-2, -1}, /*keepdim=*/true).clamp_min(kLeastNorm);
    if (!x.is_cpu() && !exact_mode()) x = x.to(at::kBFloat16);
    for (int i = 0; i < 5; ++i) {
        const auto squares = at::matmul(x, x.transpose(-2, -1));
        const auto factors = squares * kB + at::matmul(squares, squares) * kC;
        x = x * kA + at::matmul(factors, x);
    }
    return (is_tall ? x.transpose(-2, -1) : x).to(matrices.scalar_type());
}

}  // namespace meshard
