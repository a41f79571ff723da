// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace meshard {

using Color = std::array<float, 3>;  ///< red, green, blue from 0 to 1, as displayed

/// Perceptual map (viridis) from 0, dark blue, to 1, yellow; values outside are clamped.
Color sequential_color(double value);

/// Diverging map from 0, dark blue, over 0.5, nearly white, to 1, dark red; values outside are clamped.
Color diverging_color(double value);

/// One of many colours that are easy to distinguish; the same index gives the same colour.
Color categorical_color(std::int64_t index);

}  // namespace meshard
