// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Waves over the positions of points, whose sines and cosines are inputs of a model besides the positions.
struct CoordinateEncodingOptions {
    std::string kind = "none";         ///< none, fourier or learnable
    std::int64_t num_frequencies = 8;  ///< number for each scale (fourier), or for each axis (learnable)
    /// Waves per unit of length: deviations of the frequencies (fourier), or bounds of the initial frequencies
    /// (learnable).
    std::vector<double> scales{0.25, 1, 4};

    std::int64_t num_waves() const
    {
        if (kind == "none") return 0;
        return kind == "fourier" ? num_frequencies * std::ssize(scales) : 3 * num_frequencies;
    }
    /// A sine and a cosine for each wave.
    std::int64_t num_channels() const { return 2 * num_waves(); }
};

}  // namespace meshard
