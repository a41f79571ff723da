// SPDX-License-Identifier: Apache-2.0
#include "models/registry/memory_mode.h"

#include "models/geotransolver/geotransolver.h"
#include "models/transolver/transolver.h"
#include "partition/error.h"

namespace meshard {

MemoryMode memory_mode(const std::string& name)
{
    if (name == "stored") return MemoryMode::Stored;
    if (name == "recomputed") return MemoryMode::Recomputed;
    if (name == "streamed") return MemoryMode::Streamed;
    throw InvalidInput("memory mode '" + name + "' is not one of stored, recomputed, streamed.");
}

void set_memory(torch::nn::Module& module, MemoryMode mode)
{
    bool found = false;
    for (const auto& part : module.modules()) {
        if (auto* transolver = dynamic_cast<TransolverImpl*>(part.get())) transolver->set_memory(mode);
        else if (auto* geotransolver = dynamic_cast<GeoTransolverImpl*>(part.get())) geotransolver->set_memory(mode);
        else continue;
        found = true;
    }
    if (!found && mode != MemoryMode::Stored) throw InvalidInput("memory modes other than `stored` are those of Transolver and GeoTransolver; this model has none.");
}

MemoryMode inference_memory(const torch::nn::Module& module, std::int64_t num_points, std::int64_t bytes)
{
    for (const auto& part : module.modules()) {
        const auto* transolver = dynamic_cast<const TransolverImpl*>(part.get());
        if (!transolver || !transolver->can_stream()) continue;
        const auto channels = num_points * transolver->options().n_hidden * static_cast<std::int64_t>(sizeof(float));
        if (2 * channels <= bytes) return MemoryMode::Stored;
        return channels <= bytes ? MemoryMode::Recomputed : MemoryMode::Streamed;
    }
    return MemoryMode::Stored;
}

}  // namespace meshard
