// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// An MLP on points and L attention blocks, the last with a head. Besides the points and the result, nothing of the
/// size of the points is stored.
///
/// Given the slices' states of all layers, a point's results do not depend on other points. Forward makes one pass over
/// the points for every layer, each from the model's input, and adds to that layer's slice sums; backward does the same
/// from the last layer down, and adds to the gradient of a layer's states. Results equal those of `fused_mlp` and
/// `fused_block` up to rounding, with the same messages. Time: about L^2 / 2 layers forward and 2 L^2 backward instead
/// of L and 2 L. On a GPU: device_stream.h; there a tile's points between layers have autocast's half precision, if
/// any.
struct StreamedModel {
    FusedMlp mlp;
    at::Tensor offset;  ///< (B, C), as in `fused_mlp`; may be undefined
    std::vector<FusedBlock> blocks;
    std::int64_t tile_points = 0;  ///< points of a tile; 0: as many as fit the cache, on a GPU kDeviceTilePoints
};

/// (B, N, in), plain or sharded, to (B, N, O). @throws InvalidInput in backward with create_graph
at::Tensor streamed_blocks(const at::Tensor& points, const StreamedModel& model);

/// Computes on any device what `streamed_blocks` computes on a GPU; compare `fused_block_by_kernels`.
at::Tensor streamed_blocks_by_kernels(const at::Tensor& points, const StreamedModel& model);

/// `streamed_blocks` without gradients, on CPUs, layer by layer, as fast as single blocks. Keeps the C channels of each
/// point between blocks, and with `keep_projections`, which saves a tenth of the time, as many numbers again.
at::Tensor inferred_blocks(const at::Tensor& points, const StreamedModel& model, bool keep_projections);

}  // namespace meshard
