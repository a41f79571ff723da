// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

namespace meshard {

/// Index of the time nearest to `wanted`, of the first such time if there are several; none if the nearest differs by
/// more than rounding of a printed number: 1e-9 of it, or 1e-9 below 1. A time as it is in `times` finds itself,
/// however near others are.
inline std::optional<std::size_t> index_of_time(std::span<const double> times, double wanted)
{
    const auto distance = [&](double time) {
        return std::isnan(time) ? std::numeric_limits<double>::infinity() : std::abs(time - wanted);
    };
    const auto nearest = std::ranges::min_element(times, {}, distance);
    if (nearest == times.end() || !(distance(*nearest) <= 1e-9 * std::max(1.0, std::abs(wanted)))) return std::nullopt;
    return static_cast<std::size_t>(nearest - times.begin());
}

}  // namespace meshard
