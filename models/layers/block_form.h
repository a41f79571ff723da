// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/memory_mode.h"
#include "ops/fused/fused_block.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace meshard {

/// In which form a block of slice attention runs. Results differ by rounding only.
enum class BlockForm : std::uint8_t {
    Eager,       ///< its modules, one operator after the other
    Recomputed,  ///< the same, keeping its inputs only: backward runs it once more
    Fused,       ///< tiles of points through the whole block (`fused_block`)
    Inferred,    ///< without gradients, all blocks as one: a sweep over the tiles ends a block and begins the next (`inferred_blocks`)
    Streamed     ///< all blocks as one: each starts again from the model's inputs (`streamed_blocks`)
};

std::string_view name_of(BlockForm form);  ///< `eager`, `recomputed`, ...

/// What a block says of itself in the state that it is in: its weights, if the fused operators can do the same, or why they cannot. Here, and nowhere else, a
/// model says how its blocks fuse.
struct BlockFusion {
    FusedBlock block;
    const char* obstacle = nullptr;  ///< half a sentence about the block; null if there is none
};

/// Why the fused operators cannot take these points through a block: the block's own obstacle, or one of the points and weights. Null if they can.
const char* obstacle_of(const at::Tensor& points, const BlockFusion& fusion);

/// The form of all blocks as one, if memory mode and gradients ask for it; an obstacle of any block is in its way. Nothing if each block has a form of its own.
std::optional<BlockForm> form_of_all(MemoryMode memory);

/// The form of one block, Streamed aside.
/// @param obstacle   as `obstacle_of`
BlockForm form_of_one(const char* obstacle, MemoryMode memory);

/// A block by its modules, a function of its inputs and weights.
using EagerBlock = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// One block in its form.
/// @param noise    that the block draws from: a second run draws the same
/// @param inputs   of `eager`: points (B, N, C), then what else it takes, of which some may be undefined
at::Tensor run_block(const BlockFusion& fusion, MemoryMode memory, const std::shared_ptr<RowNoise>& noise, const EagerBlock& eager,
                     const std::vector<at::Tensor>& inputs);

/// What runs and why nothing faster does.
struct BlockChoice {
    BlockForm form = BlockForm::Eager;
    const char* why_not_fused = nullptr;  ///< as `obstacle_of`
};

/// A model of such blocks.
class HasBlockForms {
public:
    virtual ~HasBlockForms() = default;

    /// How its blocks would take such points now, one after the other: what counts of the points (B, N, ...) is their type, device and layout, and of the state
    /// training, gradients, memory mode and autocast.
    /// @throws InvalidInput for a memory mode that such points cannot have
    virtual std::vector<BlockChoice> block_forms(const at::Tensor& points) = 0;
};

}  // namespace meshard
