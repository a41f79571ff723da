// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/concrete_dropout.h"
#include "models/transolver/slice_projection.h"

namespace meshard {

/// Reduces any number of points to slice tokens: the first half of physics attention (GeoTransolver's tokenizers).
class ContextProjectorImpl : public torch::nn::Module {
public:
    /// @param concrete_rate   initial rate of a learned dropout on the tokens; negative: no dropout
    ContextProjectorImpl(SliceOptions options, double concrete_rate);

    /// (B, M, C) to (B, H, S, D)
    torch::Tensor forward(const torch::Tensor& points);

private:
    SliceProjection slices_;
    ConcreteDropout output_dropout_{nullptr};  // null without dropout
};
TORCH_MODULE(ContextProjector);

}  // namespace meshard
