// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"

#include <ATen/ATen.h>

namespace meshard {

/// A block with random weights, `scale` times normal ones, but for what its slices do among themselves. Without
/// temperatures of points.
inline FusedBlock random_block(const BlockShape& shape, at::ScalarType type, double scale)
{
    const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes, type).mul_(scale).requires_grad_(); };
    const auto linear = [&](std::int64_t out, std::int64_t in) {
        return Affine<at::Tensor>{random({out, in}), random({out})};
    };
    const auto norm = [&](std::int64_t channels) { return Affine<at::Tensor>{random({channels}), random({channels})}; };
    const auto C = shape.channels, I = shape.inner(), H = shape.heads, S = shape.slices, D = shape.head_dim,
               R = shape.hidden;
    FusedBlock block;
    block.shape = shape;
    block.weights = {.norm1 = norm(C),
                     .project_x = linear(I, C),
                     .project_fx = linear(I, C),
                     .slices = {random({H, S, D}), random({H, S})},
                     .out = linear(C, I),
                     .norm2 = norm(C),
                     .hidden = linear(R, C),
                     .mlp_out = linear(C, R)};
    if (shape.outputs > 0) {
        block.weights.norm3 = norm(C);
        block.weights.head = linear(shape.outputs, C);
    }
    return block;
}

}  // namespace meshard
