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
    Recomputed,  ///< as Eager, but only the block's inputs are stored: backward runs its forward again
    Fused,       ///< all operators of the block on one tile of points after the other (`fused_block`)
    /// On CPUs without gradients all blocks in one operator: a pass over the tiles ends a block and begins the next
    /// (`inferred_blocks`).
    Inferred,
    /// All blocks in one operator; each block is computed again from the model's inputs (`streamed_blocks`).
    Streamed
};

std::string_view name_of(BlockForm form);  ///< `eager`, `recomputed`, ...

/// A block for the fused operators: its weights and sizes, or the reason why they cannot compute it in its current
/// state (training, options). The only place where a model defines how its blocks are fused.
struct BlockFusion {
    FusedBlock block;
    const char* obstacle = nullptr;  ///< the reason, a clause about the block ("it has dropout"); null if there is none
};

/// The reason why the fused operators cannot compute a block on these points: the block's own, or one of the points and
/// weights. Null if they can.
const char* obstacle_of(const at::Tensor& points, const BlockFusion& fusion);

/// Returns Inferred or Streamed if memory mode and gradients require it on the device of these points and no block has
/// an obstacle; nothing if each block has a form of its own.
std::optional<BlockForm> form_of_all(const at::Tensor& points, MemoryMode memory);

/// The form of one block if `form_of_all` returns nothing.
/// @param obstacle   the result of `obstacle_of` for these points
BlockForm form_of_one(const char* obstacle, MemoryMode memory);

/// Runs a block's modules on its inputs.
using EagerBlock = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// Runs one block in its form.
/// @param noise    the noise that the block draws from; a second run in backward draws the same numbers
/// @param inputs   inputs of `eager`: points (B, N, C), then the others, some of which may be undefined
at::Tensor run_block(const BlockFusion& fusion, MemoryMode memory, const std::shared_ptr<RowNoise>& noise,
                     const EagerBlock& eager, const std::vector<at::Tensor>& inputs);

/// The form of a block, and the reason if it is not a fused one.
struct BlockChoice {
    BlockForm form = BlockForm::Eager;
    const char* why_not_fused = nullptr;  ///< as returned by `obstacle_of`
};

/// A model with such blocks.
class HasBlockForms {
public:
    virtual ~HasBlockForms() = default;

    /// The form of each block for points (B, N, ...), in the model's current state. Depends on the points' type, device
    /// and layout, and on training, gradients, memory mode and autocast.
    /// @throws InvalidInput for a memory mode that is not possible for these points
    virtual std::vector<BlockChoice> block_forms(const at::Tensor& points) = 0;
};

}  // namespace meshard
