// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/slices/row_noise.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

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

}  // namespace meshard
