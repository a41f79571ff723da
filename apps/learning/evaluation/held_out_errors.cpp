// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/held_out_errors.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace meshard {

HeldOutErrors HeldOutErrors::of_split(const Evaluation& evaluation, const std::string& split)
{
    HeldOutErrors errors;
    const auto all = coefficients_of(evaluation, split);
    const auto put = [&](std::vector<double>& to, const std::string& name) {
        for (const auto& series : all) {
            if (series.name != name) continue;
            to.clear();
            for (std::size_t i = 0; i < series.truth.size(); ++i) {
                if (const auto error = std::abs(series.predicted[i] - series.truth[i]); std::isfinite(error))
                    to.push_back(error);
            }
        }
    };
    for (const auto* of_what : {"", "_table"}) {
        put(errors.drag, std::string("cd") + of_what);
        put(errors.lift, std::string("cl") + of_what);
    }
    return errors;
}

void HeldOutErrors::add(const HeldOutErrors& other)
{
    drag.insert(drag.end(), other.drag.begin(), other.drag.end());
    lift.insert(lift.end(), other.lift.begin(), other.lift.end());
}

std::optional<double> interval_of(std::vector<double> errors, double probability)
{
    // Slightly less than the product, which is not exact: 0.9 * 10 may be above 9.
    const auto rank =
        static_cast<std::size_t>(std::ceil((static_cast<double>(errors.size()) + 1) * probability - 1e-9));
    if (rank < 1 || rank > errors.size()) return std::nullopt;
    const auto at = errors.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::ranges::nth_element(errors, at);
    return *at;
}

}  // namespace meshard
