// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/slices/row_noise.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>

namespace torch::nn {
class Module;
}

namespace meshard {

/// Dropout of points' channels (B, N, ...) that depends on the points' ids (ops/slices/row_noise.h): the same entries
/// are zero on any number of ranks and for any sharding of the points; the others are divided by 1 - rate. A rank draws
/// for its own points only. The identity in evaluation.
class RowDropoutImpl : public torch::nn::Module {
public:
    /// @param rate    from 0 to 1
    /// @param noise   the model's noise, which has the points' ids; all ranks must make the same draws from it
    RowDropoutImpl(double rate, std::shared_ptr<RowNoise> noise);

    torch::Tensor forward(const torch::Tensor& x);

private:
    double rate_;
    std::shared_ptr<RowNoise> noise_;
};
TORCH_MODULE(RowDropout);

/// Uniform numbers in [0, 1) for the entries of `x`, (B, N, ...), in float, or double if `x` is double.
torch::Tensor uniform_of_rows(const torch::Tensor& x, RowNoise& noise);

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
