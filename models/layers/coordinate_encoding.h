// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/coordinate_encoding_options.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace meshard {

/// Sines and cosines of waves at positions x: (B, N, 3) to (B, N, num_channels), all sines first.
///
/// `fourier`: sin(2 pi b.x), cos(2 pi b.x) for directions b that are drawn once, from normal distributions with the
/// deviations `scales` (Tancik et al., "Fourier features let networks learn high frequency functions in low dimensional
/// domains", 2020). Buffer: `directions` (3, waves).
///
/// `learnable`: sin(2 pi w x_c + phi) and its cosine along each axis c, with w = exp(theta), where theta and phi are
/// trained. Initially the w of an axis range from the smallest of `scales` to the largest in equal steps of theta, and
/// phi is 0. Parameters: `log_frequencies`, `phases` (waves), x's first; flat, since optimisers may treat matrices
/// differently.
///
/// Computed in the type of the positions, without matrix products, which lower precisions would round: an angle of many
/// turns needs all its digits.
class CoordinateEncodingImpl : public torch::nn::Module {
public:
    /// @param seed   seed of the directions; LibTorch's generator is not used
    /// @throws InvalidInput for another kind, no frequencies, and scales that are not positive
    CoordinateEncodingImpl(const CoordinateEncodingOptions& options, std::uint64_t seed);

    torch::Tensor forward(const torch::Tensor& places) const;

private:
    std::int64_t num_frequencies_;
    torch::Tensor directions_;                // fourier
    torch::Tensor log_frequencies_, phases_;  // learnable
};
TORCH_MODULE(CoordinateEncoding);

}  // namespace meshard
