// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace meshard {

/// What a training step stores for each point: less memory costs more time. Results differ by rounding only.
enum class MemoryMode : std::uint8_t {
    Stored,      ///< everything that backward needs; the fastest mode
    Recomputed,  ///< the layers' inputs; backward computes the rest again, one tile of points at a time
    Streamed     ///< only the model's inputs and results: every layer is computed again from the inputs
};

/// A model with several memory modes.
class HasMemoryModes {
public:
    virtual ~HasMemoryModes() = default;

    /// Sets what is stored for each point between forward and backward, or without gradients from one layer to the
    /// next. @throws InvalidInput for a mode that the model does not have
    virtual void set_memory(MemoryMode mode) = 0;

    /// The fastest mode in which inference on `num_points` points stores at most `bytes` from layer to layer; nothing
    /// if inference is the same in all modes.
    virtual std::optional<MemoryMode> inference_memory(std::int64_t num_points, std::int64_t bytes) const;
};

/// The mode named `stored`, `recomputed` or `streamed`. @throws InvalidInput for another name
MemoryMode memory_mode(const std::string& name);

std::string_view name_of(MemoryMode mode);  ///< `stored`, `recomputed` or `streamed`

/// Returns `mode`. @throws InvalidInput for Streamed, which only Transolver has
MemoryMode unless_streamed(std::string_view model, MemoryMode mode);

/// Sets the mode of a module and all its submodules that have memory modes. @throws InvalidInput for a mode that one of
/// them does not have, and for any mode but Stored if there are none
void set_memory(torch::nn::Module& module, MemoryMode mode);

/// The modes that `set_memory` takes, the fastest first. The module is left in `own`.
std::vector<MemoryMode> memory_modes(torch::nn::Module& module, MemoryMode own);

/// The fastest mode of a module with which inference on this process's points keeps at most `bytes` from layer to
/// layer.
MemoryMode inference_memory(const torch::nn::Module& module, std::int64_t num_points, std::int64_t bytes);

}  // namespace meshard
