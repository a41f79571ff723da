// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// Waves over the places of points, whose sines and cosines a model is told besides the places.
struct CoordinateEncodingOptions {
    std::string kind = "none";               ///< none, fourier or learnable
    std::int64_t num_frequencies = 8;        ///< of each scale (fourier), or of each axis (learnable)
    std::vector<double> scales{0.25, 1, 4};  ///< waves per unit of length: deviations of the frequencies (fourier), or among them the first range (learnable)

    std::int64_t num_waves() const
    {
        if (kind == "none") return 0;
        return kind == "fourier" ? num_frequencies * static_cast<std::int64_t>(scales.size()) : 3 * num_frequencies;
    }
    /// A sine and a cosine of each wave.
    std::int64_t num_channels() const { return 2 * num_waves(); }
};

}  // namespace meshard
