// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/field_metrics.h"

#include "models/layers/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace meshard {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kLeastSpread = 1e-3;  // least difference of two coefficients whose order counts
constexpr double kConstant = 1e-13;    // a smaller share of the spread in the sum of squares is rounding

double quotient(double a, double b)
{
    return b > 0 ? a / b : kNone;
}

/// Ranks finite values from 1; equal values share the mean of their ranks.
std::vector<double> ranks_of(std::span<const double> values)
{
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](auto i) { return values[i]; });
    std::vector<double> ranks(values.size());
    for (std::size_t first = 0; first < order.size();) {
        std::size_t last = first;
        while (last < order.size() && values[order[last]] == values[order[first]]) ++last;
        for (auto i = first; i < last; ++i) ranks[order[i]] = 0.5 * static_cast<double>(first + 1 + last);
        first = last;
    }
    return ranks;
}

double mean_of(std::span<const double> values)
{
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double pair_order(std::span<const double> predicted, std::span<const double> truth)
{
    double right = 0, all = 0;
    for (std::size_t i = 0; i < truth.size(); ++i) {
        for (std::size_t j = i + 1; j < truth.size(); ++j) {
            if (std::abs(truth[i] - truth[j]) <= kLeastSpread) continue;
            ++all;
            if ((predicted[i] - predicted[j]) * (truth[i] - truth[j]) > 0) ++right;
        }
    }
    return quotient(right, all);
}

}  // namespace

Metrics field_metrics(std::span<const ChannelSums> channels)
{
    ChannelSums all;
    double spread = 0;  // sum (t - mean t)^2, of each channel about its own mean
    for (const auto& one : channels) {
        all.count += one.count;
        all.error_squared += one.error_squared;
        all.error += one.error;
        all.truth_squared += one.truth_squared;
        all.truth_absolute += one.truth_absolute;
        all.weighted_error += one.weighted_error;
        all.weighted_truth += one.weighted_truth;
        all.guess_squared += one.guess_squared;
        all.guess += one.guess;
        if (!(one.largest_error <= all.largest_error)) all.largest_error = one.largest_error;  // NaN stays
        all.largest_truth = std::max(all.largest_truth, one.largest_truth);
        if (one.count > 0) spread += std::max(0.0, one.truth_squared - one.truth * one.truth / one.count);
    }
    const auto mae = quotient(all.error, all.count), rmse = std::sqrt(quotient(all.error_squared, all.count));
    return {{"rel_l2", relative_l2(all.error_squared, all.truth_squared)},
            {"rel_l1", quotient(all.error, all.truth_absolute)},
            {"mae", mae},
            {"rmse", rmse},
            {"max_abs", all.largest_error},
            {"rel_l2_area", std::sqrt(quotient(all.weighted_error, all.weighted_truth))},
            {"rmse_over_max", quotient(rmse, all.largest_truth)},
            {"mae_over_max", quotient(mae, all.largest_truth)},
            {"r2", spread > kConstant * all.truth_squared ? 1 - all.error_squared / spread : kNone},
            {"guess_rel_l2", relative_l2(all.guess_squared, all.truth_squared)},
            {"guess_mae", quotient(all.guess, all.count)}};
}

Metrics named_field_metrics(const std::string& name, std::span<const ChannelSums> channels,
                            const MagnitudeSums& magnitudes)
{
    Metrics named;
    for (const auto& [metric, value] : field_metrics(channels)) named.emplace_back(name + "." + metric, value);
    if (channels.size() == 1) return named;
    constexpr std::array axes{"x", "y", "z"};
    for (std::size_t c = 0; c < channels.size(); ++c) {
        const auto component = channels.size() == 3 ? std::string(axes[c]) : std::to_string(c);
        named.emplace_back(name + "." + component + ".rel_l2",
                           relative_l2(channels[c].error_squared, channels[c].truth_squared));
    }
    named.emplace_back(name + ".mag.rel_l2", relative_l2(magnitudes.error_squared, magnitudes.truth_squared));
    return named;
}

Spread spread_of(std::span<const double> values)
{
    Spread spread;
    std::vector<double> there;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!std::isfinite(values[i])) continue;
        if (there.empty() || values[i] > spread.largest) {
            spread.largest = values[i];
            spread.largest_case = static_cast<std::int64_t>(i);
        }
        there.push_back(values[i]);
    }
    spread.count = std::ssize(there);
    if (there.empty()) return {0, kNone, kNone, kNone, kNone, -1};
    spread.mean = mean_of(there);
    double squares = 0;
    for (const auto value : there) squares += (value - spread.mean) * (value - spread.mean);
    spread.deviation = std::sqrt(squares / static_cast<double>(there.size()));
    std::ranges::sort(there);
    const auto half = there.size() / 2;
    spread.median = there.size() % 2 == 1 ? there[half] : 0.5 * (there[half - 1] + there[half]);
    return spread;
}

double spearman(std::span<const double> a, std::span<const double> b)
{
    const auto are_finite = [](std::span<const double> values) {
        return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
    };
    if (a.size() < 2 || !are_finite(a) || !are_finite(b)) return kNone;
    const auto x = ranks_of(a), y = ranks_of(b);
    const auto mean = 0.5 * static_cast<double>(a.size() + 1);
    double xy = 0, xx = 0, yy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return quotient(xy, std::sqrt(xx * yy));
}

Metrics coefficient_metrics(std::span<const double> predicted, std::span<const double> truth,
                            std::optional<double> guess)
{
    const auto n = static_cast<double>(truth.size());
    double absolute = 0, squares = 0, sum = 0, largest = 0, relatives = 0, spread = 0, truth_squared = 0, guessed = 0;
    const auto mean = mean_of(truth);
    for (std::size_t i = 0; i < truth.size(); ++i) {
        const auto error = predicted[i] - truth[i];
        sum += error;
        absolute += std::abs(error);
        squares += error * error;
        if (!(std::abs(error) <= largest)) largest = std::abs(error);  // NaN stays
        relatives += quotient(std::abs(error), std::abs(truth[i]));
        spread += (truth[i] - mean) * (truth[i] - mean);
        truth_squared += truth[i] * truth[i];
        guessed += guess ? std::abs(*guess - truth[i]) : kNone;
    }
    const auto bias = sum / n;
    return {{"n", n},
            {"mae", absolute / n},
            {"bias", bias},
            {"std", std::sqrt(std::max(0.0, squares / n - bias * bias))},
            {"max_abs", largest},
            {"mean_rel", relatives / n},
            {"r2", spread > kConstant * truth_squared ? 1 - squares / spread : kNone},
            {"spearman", spearman(predicted, truth)},
            {"pair_order", pair_order(predicted, truth)},
            {"guess_mae", guessed / n}};
}

}  // namespace meshard
