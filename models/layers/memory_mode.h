// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torch::nn {
class Module;
}

namespace meshard {

/// What a training step keeps of each point, memory against time. Results differ by rounding only.
enum class MemoryMode : std::uint8_t {
    Stored,      ///< what backward needs: the fastest
    Recomputed,  ///< the layers' inputs; backward computes the rest again, a tile of points at a time
    Streamed     ///< nothing but inputs and results: every layer starts again from the inputs
};

/// A model whose training steps can keep less than what backward needs.
class HasMemoryModes {
public:
    virtual ~HasMemoryModes() = default;

    /// What is kept of each point between forward and backward; without gradients, from one layer to the next. @throws InvalidInput for a mode that it does not
    /// have
    virtual void set_memory(MemoryMode mode) = 0;

    /// The fastest mode whose inference keeps no more than so many bytes of so many points from layer to layer; nothing if inference has one way only.
    virtual std::optional<MemoryMode> inference_memory(std::int64_t num_points, std::int64_t bytes) const;
};

/// From `stored`, `recomputed`, `streamed`. @throws InvalidInput for another name
MemoryMode memory_mode(const std::string& name);

/// For every part of a module that has memory modes, itself included. @throws InvalidInput for a mode that one of them does not have, or other than Stored if
/// there are none
void set_memory(torch::nn::Module& module, MemoryMode mode);

/// The fastest mode whose inference keeps no more than so many bytes of this process's points from layer to layer, of those that the module has.
MemoryMode inference_memory(const torch::nn::Module& module, std::int64_t num_points, std::int64_t bytes);

}  // namespace meshard
