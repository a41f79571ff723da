// SPDX-License-Identifier: Apache-2.0
#include "models/layers/memory_mode.h"

#include "partition/error.h"

#include <torch/nn/module.h>

namespace meshard {

MemoryMode memory_mode(const std::string& name)
{
    if (name == "stored") return MemoryMode::Stored;
    if (name == "recomputed") return MemoryMode::Recomputed;
    if (name == "streamed") return MemoryMode::Streamed;
    throw InvalidInput("memory mode '{}' is not one of stored, recomputed, streamed.", name);
}

std::string_view name_of(MemoryMode mode)
{
    return mode == MemoryMode::Stored ? "stored" : mode == MemoryMode::Recomputed ? "recomputed" : "streamed";
}

std::optional<MemoryMode> HasMemoryModes::inference_memory(std::int64_t, std::int64_t) const
{
    return std::nullopt;
}

MemoryMode unless_streamed(std::string_view model, MemoryMode mode)
{
    if (mode == MemoryMode::Streamed)
        throw InvalidInput("{}: only Transolver has the memory mode `streamed`. Use `recomputed`.", model);
    return mode;
}

void set_memory(torch::nn::Module& module, MemoryMode mode)
{
    bool found = false;
    for (const auto& part : module.modules()) {
        auto* model = dynamic_cast<HasMemoryModes*>(part.get());
        if (!model) continue;
        model->set_memory(mode);
        found = true;
    }
    if (!found && mode != MemoryMode::Stored) throw InvalidInput("this model has no memory mode but `stored`.");
}

std::vector<MemoryMode> memory_modes(torch::nn::Module& module, MemoryMode own)
{
    std::vector<MemoryMode> modes;
    for (const auto mode : {MemoryMode::Stored, MemoryMode::Recomputed, MemoryMode::Streamed}) {
        try {
            set_memory(module, mode);
            modes.push_back(mode);
        } catch (const InvalidInput&) {  // this model does not have it
        }
    }
    set_memory(module, own);
    return modes;
}

MemoryMode inference_memory(const torch::nn::Module& module, std::int64_t num_points, std::int64_t bytes)
{
    for (const auto& part : module.modules()) {
        const auto* model = dynamic_cast<const HasMemoryModes*>(part.get());
        const auto mode = model ? model->inference_memory(num_points, bytes) : std::nullopt;
        if (mode) return *mode;
    }
    return MemoryMode::Stored;
}

}  // namespace meshard
