// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_call.h"
#include "ops/fused/device_tile.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// Forward and backward of `fused_block` for GPUs: tiles one after the other (DeviceTile). Nothing of the size of points times slices is stored. With
/// `keep_activations` training keeps the autograd graphs of all tiles, otherwise backward runs the operators again.
class DeviceBlockPasses {
public:
    DeviceBlockPasses(BlockCall& call, const at::Tensor& x, const BlockWeights<at::Tensor>& weights);

    at::Tensor forward(const std::vector<at::Tensor>& attend_weights);
    BlockPassGradients backward(const at::Tensor& result_gradient);

private:
    at::Tensor rows(const at::Tensor& points, const Tile& tile) const;
    at::Tensor no_sums(std::int64_t width) const;

    BlockCall& call_;
    at::Tensor x_;
    BlockWeights<at::Tensor> weights_;  // leaves of the call
    DeviceTile block_;
};

/// Runs on any device what `fused_block` runs on a GPU: the reference of the kernels, for tests without a GPU; for points in half precision under autocast to
/// their type.
at::Tensor fused_block_by_kernels(const at::Tensor& x, const FusedBlock& block, const FusedOptions& options = {});

}  // namespace meshard
