// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"
#include "ops/slices/slice_kernels.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Points in a tile: many enough to fill a GPU, few enough that what a tile needs is small beside the points.
inline constexpr std::int64_t kDeviceTilePoints = 1 << 16;

/// Both directions of `fused_block` for GPUs: tiles one after the other, products and norms by LibTorch, slices by kernels. Nothing of the size of points
/// times slices is stored. With `keep_activations` training keeps what LibTorch's operators of all tiles need for backward, else these are run again.
class DeviceBlockPasses {
public:
    DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights);

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights);
    BlockPassGradients backward(const at::Tensor& result_gradient);

private:
    at::Tensor rows(const at::Tensor& points, const Tile& tile) const;
    RecordedTile projected(const Tile& tile, bool record) const;
    void bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const;
    SlicePoints sliced(const RecordedTile& tile) const;
    at::Tensor no_sums(std::int64_t width) const;

    BlockCall& call_;
    at::Tensor x_;
    BlockWeights<at::Tensor> weights_;  // leaves of the call
};

/// What `fused_block` does on a GPU, on any device: the kernels' reference, for tests without one.
at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

}  // namespace meshard
