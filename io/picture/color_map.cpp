// SPDX-License-Identifier: Apache-2.0
#include "io/picture/color_map.h"

#include <algorithm>
#include <cmath>

namespace meshard {

namespace {

using Stops = std::array<std::array<int, 3>, 11>;

/// Interpolates between equally spaced colours.
Color color_between(const Stops& stops, double value)
{
    const double at = std::clamp(value, 0.0, 1.0) * (stops.size() - 1);
    const auto lower = std::min(static_cast<std::size_t>(at), stops.size() - 2);
    const double part = at - static_cast<double>(lower);
    Color color{};
    for (int i = 0; i < 3; ++i)
        color[i] = static_cast<float>((stops[lower][i] * (1 - part) + stops[lower + 1][i] * part) / 255);
    return color;
}

}  // namespace

Color sequential_color(double value)
{
    // Viridis (van der Walt and Smith 2015) at eleven equally spaced values.
    constexpr Stops stops{{{68, 1, 84},
                           {72, 36, 117},
                           {65, 68, 135},
                           {53, 95, 141},
                           {42, 120, 142},
                           {33, 145, 140},
                           {34, 168, 132},
                           {68, 191, 112},
                           {122, 209, 81},
                           {189, 223, 38},
                           {253, 231, 37}}};
    return color_between(stops, value);
}

Color diverging_color(double value)
{
    // RdBu of eleven classes, from blue to red (Harrower and Brewer, ColorBrewer.org, 2003).
    constexpr Stops stops{{{5, 48, 97},
                           {33, 102, 172},
                           {67, 147, 195},
                           {146, 197, 222},
                           {209, 229, 240},
                           {247, 247, 247},
                           {253, 219, 199},
                           {244, 165, 130},
                           {214, 96, 77},
                           {178, 24, 43},
                           {103, 0, 31}}};
    return color_between(stops, value);
}

Color categorical_color(std::int64_t index)
{
    // Hues a golden angle apart never coincide; saturation and value vary so that near hues differ as well.
    const double turn = static_cast<double>(index % 100000) * 0.6180339887498949 + 0.58;
    const double hue = 6 * (turn - std::floor(turn));
    const double saturation = index % 3 == 1 ? 0.45 : 0.7;
    const double value = index % 2 == 0 ? 0.92 : 0.72;
    Color color{};
    for (int i = 0; i < 3; ++i) {
        const double k = std::fmod(5.0 - 2 * i + hue, 6.0);
        color[i] = static_cast<float>(value * (1 - saturation * std::clamp(std::min(k, 4 - k), 0.0, 1.0)));
    }
    return color;
}

}  // namespace meshard
