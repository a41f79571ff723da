// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace torch::nn {
class Module;
}

namespace meshard {

/// A model that draws noise from a counter of its own.
class DrawsNoise {
public:
    virtual ~DrawsNoise() = default;

    /// Resets the counter and sets its seed. A new model has the seed that LibTorch's default generator had when the
    /// model was made.
    virtual void seed_noise(std::uint64_t seed) = 0;
};

/// Seeds LibTorch's default generators, which the whole process uses, and the module's own counters: later draws
/// (dropout, Transolver++'s noise) depend on the seed only. A training loop that calls this before each step with the
/// step's number can be stopped and resumed without a difference. Not collective; ranks that share rows must pass the
/// same seed.
void seed_draws(torch::nn::Module& module, std::uint64_t seed);

}  // namespace meshard
