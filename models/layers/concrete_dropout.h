// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/slices/row_noise.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

namespace meshard {

/// Dropout whose rate is learned (Gal, Hron, Kendall 2017, Concrete Dropout). The identity in evaluation.
///
/// Parameter: `p_logit`, a single value, the logit of the rate.
class ConcreteDropoutImpl : public torch::nn::Module {
public:
    /// @param rate    initial rate; clamped to [0.05, 0.99] as in the reference
    /// @param noise   noise for points' channels (B, N, ...): draws then depend on the points' ids, as in `RowDropout`;
    ///                null: LibTorch's generator
    explicit ConcreteDropoutImpl(double rate, std::shared_ptr<RowNoise> noise = nullptr);

    torch::Tensor forward(const torch::Tensor& x);

private:
    torch::Tensor p_logit_;
    std::shared_ptr<RowNoise> noise_;
};
TORCH_MODULE(ConcreteDropout);

}  // namespace meshard
