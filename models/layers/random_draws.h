// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace torch::nn {
class Module;
}

namespace meshard {

/// A model that draws noise by a counter of its own.
class DrawsNoise {
public:
    virtual ~DrawsNoise() = default;

    /// The counter starts anew, with another seed than that of LibTorch's generator at the model's making.
    virtual void seed_noise(std::uint64_t seed) = 0;
};

/// From here on what a module draws (dropout, Transolver++'s noise) follows from the seed alone, whatever was drawn before: LibTorch's default generators,
/// which are all of this process, and the module's own counters start anew. A training loop that calls this before each step with a number of the step's own
/// goes on after a stop as it would have without. Not collective; ranks that share rows must pass the same seed.
void seed_draws(torch::nn::Module& module, std::uint64_t seed);

}  // namespace meshard
