// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

namespace meshard {

/// `n` points in the unit cube without order, (n, 3), float64: the same in every process.
inline at::Tensor scattered(std::int64_t n)
{
    return at::arange(n * 3, at::kDouble).mul(12.9898).sin().mul(43758.5453).frac().abs().view({n, 3});
}

}  // namespace meshard
