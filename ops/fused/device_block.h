// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"
#include "ops/fused/device_layer.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Divides points (B, N) into pieces that a layer processes one after the other: all points together if there are at
/// most `most`, else pieces of single samples. A piece is a list of ranges, counted over the batch; samples without
/// points have a range, too.
std::vector<std::vector<Tile>> device_ranges(std::int64_t batch, std::int64_t num_points, std::int64_t most);

/// Draws the noise of the slices' logits of points (B, N) on their device: (B N, H, S) of float; undefined if the block
/// has none.
at::Tensor device_noise(const FusedBlock& block, const RowDraw& draw, const at::Tensor& x);

/// Forward and backward of `fused_block` on devices (DeviceLayer). Nothing of the size of points times slices is
/// stored, except noise. With `keep_activations` all points are one piece, whose activations are kept; otherwise
/// backward computes them again, in pieces of `tile_points`.
class DeviceBlockPasses {
public:
    /// @param x   (B, N, C); undefined in a backward pass whose activations were kept
    DeviceBlockPasses(BlockCall& call, const at::Tensor& x);

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights);
    BlockPassGradients backward(const at::Tensor& result_gradient);

private:
    LayerPoints projected(const std::vector<Tile>& ranges, bool record) const;
    at::Tensor rows(const at::Tensor& points, const std::vector<Tile>& ranges) const;

    BlockCall& call_;
    at::Tensor x_, noise_;
    DeviceLayer layer_;
};

/// Computes on any device what `fused_block` computes on a GPU: a reference of the kernels, for tests without a GPU.
/// Under autocast the points may have its half precision.
at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

}  // namespace meshard
