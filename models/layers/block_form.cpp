// SPDX-License-Identifier: Apache-2.0
#include "models/layers/block_form.h"

#include "sharding/memory/recompute.h"

#include <torch/types.h>

#include <utility>

namespace meshard {
namespace {

/// Runs `block(inputs)` under `checkpoint`. Backward draws the same noise again and then restores the counter for the
/// next forward.
at::Tensor recomputed(const std::shared_ptr<RowNoise>& noise, const EagerBlock& block,
                      const std::vector<at::Tensor>& inputs)
{
    return checkpoint(
        [block, noise, before = *noise,
         again = std::make_shared<bool>(false)](const std::vector<at::Tensor>& given) -> std::vector<at::Tensor> {
            const auto now = std::exchange(*noise, before);
            auto output = block(given);
            if (std::exchange(*again, true)) *noise = now;
            return {std::move(output)};
        },
        inputs)[0];
}

}  // namespace

std::string_view name_of(BlockForm form)
{
    switch (form) {
    case BlockForm::Eager:
        return "eager";
    case BlockForm::Recomputed:
        return "recomputed";
    case BlockForm::Fused:
        return "fused";
    case BlockForm::Inferred:
        return "inferred";
    case BlockForm::Streamed:
        break;
    }
    return "streamed";
}

const char* obstacle_of(const at::Tensor& points, const BlockFusion& fusion)
{
    return fusion.obstacle ? fusion.obstacle : fusion_obstacle(points, fusion.block);
}

std::optional<BlockForm> form_of_all(const at::Tensor& points, MemoryMode memory)
{
    if (memory == MemoryMode::Streamed) return BlockForm::Streamed;
    return torch::GradMode::is_enabled() || !points.is_cpu() ? std::nullopt : std::optional(BlockForm::Inferred);
}

BlockForm form_of_one(const char* obstacle, MemoryMode memory)
{
    if (!obstacle) return BlockForm::Fused;
    return memory == MemoryMode::Stored ? BlockForm::Eager : BlockForm::Recomputed;
}

at::Tensor run_block(const BlockFusion& fusion, MemoryMode memory, const std::shared_ptr<RowNoise>& noise,
                     const EagerBlock& eager, const std::vector<at::Tensor>& inputs)
{
    const auto& x = inputs.front();
    switch (form_of_one(obstacle_of(x, fusion), memory)) {
    case BlockForm::Fused:
        return fused_block(x, fusion.block, {.keep_activations = memory == MemoryMode::Stored});
    case BlockForm::Recomputed:
        return recomputed(noise, eager, inputs);
    default:
        return eager(inputs);
    }
}

}  // namespace meshard
