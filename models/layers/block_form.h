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

/// The ways to compute a block of slice attention. Results differ by rounding only.
enum class BlockForm : std::uint8_t {
    Eager,       ///< one LibTorch operator after the other
    Recomputed,  ///< the same, but only the block's inputs are kept: backward runs its forward again
    Fused,       ///< all operators of the block on one tile of points after the other (`fused_block`)
    Inferred,    ///< on CPUs all blocks in one operator, without gradients: a pass over the tiles ends a block and begins the next (`inferred_blocks`)
    Streamed     ///< all blocks in one operator: each block is computed from the model's inputs again (`streamed_blocks`)
};

std::string_view name_of(BlockForm form);  ///< `eager`, `recomputed`, ...

/// A block for the fused operators: its weights and sizes, or the reason why they cannot compute it in its current state (training, options). The only place
/// where a model says how its blocks fuse.
struct BlockFusion {
    FusedBlock block;
    const char* obstacle = nullptr;  ///< the reason, a clause about the block ("it has dropout"); null if there is none
};

/// Why the fused operators cannot take these points through a block: the block's own obstacle, or one of the points and weights. Null if they can.
const char* obstacle_of(const at::Tensor& points, const BlockFusion& fusion);

/// Inferred or Streamed, if memory mode and gradients require it on the device of these points and no block has an obstacle; nothing if each block has a form
/// of its own.
std::optional<BlockForm> form_of_all(const at::Tensor& points, MemoryMode memory);

/// The form of one block if `form_of_all` has none.
/// @param obstacle   of these points, as `obstacle_of`
BlockForm form_of_one(const at::Tensor& points, const char* obstacle, MemoryMode memory);

/// Runs a block's modules on its inputs.
using EagerBlock = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Runs one block in its form.
/// @param noise    from which the block draws; a second run in backward draws the same numbers
/// @param inputs   of `eager`: points (B, N, C), then its other inputs, some of which may be undefined
at::Tensor run_block(const BlockFusion& fusion, MemoryMode memory, const std::shared_ptr<RowNoise>& noise, const EagerBlock& eager,
                     const std::vector<at::Tensor>& inputs);

/// The form of a block, and the reason if it is not a faster one.
struct BlockChoice {
    BlockForm form = BlockForm::Eager;
    const char* why_not_fused = nullptr;  ///< as `obstacle_of`
};

/// A model with such blocks.
class HasBlockForms {
public:
    virtual ~HasBlockForms() = default;

    /// The form of each block for such points, (B, N, ...), in the model's current state. Depends on the points' type, device and layout, and on training,
    /// gradients, memory mode and autocast.
    /// @throws InvalidInput for a memory mode that such points cannot have
    virtual std::vector<BlockChoice> block_forms(const at::Tensor& points) = 0;
};

}  // namespace meshard
