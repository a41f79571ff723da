// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"
#include "ops/slices/slice_kernels.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Points in a tile: enough to fill a GPU, and so few that a tile's memory is small compared to that of all points.
inline constexpr std::int64_t kDeviceTilePoints = 1 << 16;

/// Forward and backward of `fused_block` for GPUs: tiles one after the other, products and norms by LibTorch, slices by kernels. Nothing of the size of
/// points times slices is stored. With `keep_activations` training keeps the autograd graphs of all tiles, otherwise backward runs the operators again.
///
/// Points in half precision: products and slices are computed in it, slices by LibTorch's attention (AttendedSlices), norms, residual sums and sums over points
/// in the type of the weights.
class DeviceBlockPasses {
public:
    DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights);

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights);
    BlockPassGradients backward(const at::Tensor& result_gradient);

private:
    at::Tensor rows(const at::Tensor& points, const Tile& tile) const;
    RecordedTile projected(const Tile& tile, bool record) const;
    void bring_back(RecordedTile& tile, const at::Tensor& states, bool record) const;
    template <class Work>
    auto with_slices(const RecordedTile& tile, const Work& work) const;
    at::Tensor normal(const at::Tensor& x, const Affine<at::Tensor>& norm) const;
    at::Tensor no_sums(std::int64_t width) const;

    BlockCall& call_;
    at::Tensor x_;
    BlockWeights<at::Tensor> weights_;  // leaves of the call
    BlockWeights<at::Tensor> used_;     // the same in the type of the points
};

/// Runs on any device what `fused_block` runs on a GPU: the reference of the kernels, for tests without a GPU; for points in half precision under autocast to
/// their type.
at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

}  // namespace meshard
