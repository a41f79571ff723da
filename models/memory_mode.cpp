// SPDX-License-Identifier: Apache-2.0
#include "models/memory_mode.h"

#include "models/transolver.h"
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
        auto* transolver = dynamic_cast<TransolverImpl*>(part.get());
        if (!transolver) continue;
        transolver->set_memory(mode);
        found = true;
    }
    if (!found && mode != MemoryMode::Stored) throw InvalidInput("memory modes other than `stored` are Transolver's; this model has none.");
}

}  // namespace meshard
