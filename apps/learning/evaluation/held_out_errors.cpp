// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/held_out_errors.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace meshard {

HeldOutErrors HeldOutErrors::of_split(const Evaluation& evaluation, const std::string& split)
{
    HeldOutErrors errors;
    const auto all = coefficients_of(evaluation, split);
    const auto put = [&](std::map<std::string, double>& to, const std::string& name) {
        for (const auto& series : all) {
            if (series.name != name) continue;
            to.clear();
            for (std::size_t i = 0; i < series.truth.size(); ++i) {
                if (const auto error = series.predicted[i] - series.truth[i]; std::isfinite(error))
                    to[series.ids[i]] = error;
            }
        }
    };
    for (const auto* of_what : {"", "_table"}) {
        put(errors.drag, std::string("cd") + of_what);
        put(errors.lift, std::string("cl") + of_what);
    }
    return errors;
}

HeldOutErrors HeldOutErrors::of_mean(std::span<const HeldOutErrors> models)
{
    const auto mean = [&](std::map<std::string, double> HeldOutErrors::* coefficient) {
        std::map<std::string, std::pair<double, int>> sums;
        for (const auto& model : models)
            for (const auto& [id, error] : model.*coefficient) {
                sums[id].first += error;
                ++sums[id].second;
            }
        std::map<std::string, double> means;
        for (const auto& [id, sum] : sums) means[id] = sum.first / sum.second;
        return means;
    };
    return {mean(&HeldOutErrors::drag), mean(&HeldOutErrors::lift)};
}

std::optional<double> interval_of(const std::map<std::string, double>& errors_by_case)
{
    std::vector<double> errors;
    for (const auto& [id, error] : errors_by_case) errors.push_back(std::abs(error));
    // Slightly less than the product, which is not exact: 0.9 * 10 may be above 9.
    const auto rank = static_cast<std::size_t>(std::ceil((static_cast<double>(errors.size()) + 1) * kCoverage - 1e-9));
    if (rank < 1 || rank > errors.size()) return std::nullopt;
    const auto at = errors.begin() + static_cast<std::ptrdiff_t>(rank - 1);
    std::ranges::nth_element(errors, at);
    return *at;
}

}  // namespace meshard
