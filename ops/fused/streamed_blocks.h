// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/fused_block.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshard {

/// An MLP on points and L attention blocks of which the last has a head, storing nothing of the size of the points but the points and the result.
///
/// Given the slices' states of all layers, each point's way through all layers is its own. So forward streams the points once for every
/// layer, each time from the start, and adds to that layer's slice sums; backward does the same from the last layer down, adding to the gradient of a
/// layer's states. Exact: results equal those of `fused_mlp` and `fused_block` but for rounding. Messages are the same, too. Time: about L^2 / 2 layers
/// forward and 2 L^2 backward instead of L and 2 L.
struct StreamedModel {
    FusedMlp mlp;
    at::Tensor offset;  ///< (B, C), as of `fused_mlp`; may be undefined
    std::vector<FusedBlock> blocks;
    std::int64_t tile_points = 0;  ///< 0: what fits the cache
};

/// (B, N, in), plain or sharded, to (B, N, O). @throws InvalidInput in backward with create_graph
at::Tensor streamed_blocks(const at::Tensor& points, const StreamedModel& model);

/// The same without gradients, layer by layer, in as much time as the blocks one after the other. Of each point it keeps the C channels that go from block to
/// block, and with `keep_projections`, which saves a tenth of the time, as many again.
at::Tensor inferred_blocks(const at::Tensor& points, const StreamedModel& model, bool keep_projections);

/// States of all layers, (B, H, S, D) each, that all points together give the slices; without gradients. Collective.
std::vector<at::Tensor> slice_states_of(const at::Tensor& points, const StreamedModel& model);

/// The model at any points, given the states; without gradients and messages. At the points that gave the states: `streamed_blocks`.
at::Tensor blocks_with_states(const at::Tensor& points, const StreamedModel& model, const std::vector<at::Tensor>& states);

}  // namespace meshard
