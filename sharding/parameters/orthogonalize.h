// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace meshard {

/// Approximately orthogonalises matrices, keeping their singular vectors: applies x -> 3.4445 x - 4.7750 x^3 + 2.0315
/// x^5 five times to the singular values, after division by the Frobenius norm, using matrix products only (Jordan et
/// al., "Muon", 2024). Singular values do not converge to 1: those from [0.01, 1] end in [0.68, 1.14]. Computes in the
/// given type on the CPU and in exact mode, otherwise in bfloat16.
/// @param matrices   (..., m, n), plain   @return the same shape and type
at::Tensor orthogonalized(const at::Tensor& matrices);

}  // namespace meshard
