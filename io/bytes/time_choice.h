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
/// however near others are. Times that a file has in single precision are found by what they were rounded from, too.
inline std::optional<std::size_t> index_of_time(std::span<const double> times, double wanted)
{
    for (const double rounded : {wanted, static_cast<double>(static_cast<float>(wanted))}) {
        const auto distance = [&](double time) {
            return std::isnan(time) ? std::numeric_limits<double>::infinity() : std::abs(time - rounded);
        };
        const auto nearest = std::ranges::min_element(times, {}, distance);
        if (nearest != times.end() && std::isfinite(rounded) &&
            distance(*nearest) <= 1e-9 * std::max(1.0, std::abs(rounded)))
            return static_cast<std::size_t>(nearest - times.begin());
    }
    return std::nullopt;
}

}  // namespace meshard
