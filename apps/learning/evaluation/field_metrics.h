// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Numbers by name, in the order in which they are shown. NaN stands for a number that is not defined.
using Metrics = std::vector<std::pair<std::string, double>>;

/// Sums over all points of a case, of one channel: y is the prediction, t the truth, d = y - t, A the area or volume of
/// a point, m the training mean.
struct ChannelSums {
    /// n, sum d^2, |d|, t^2, |t|, t
    double count = 0, error_squared = 0, error = 0, truth_squared = 0, truth_absolute = 0, truth = 0;
    double weighted_error = 0, weighted_truth = 0;  ///< sum A d^2, A t^2
    double guess_squared = 0, guess = 0;            ///< sum (m - t)^2, |m - t|
    double largest_error = 0, largest_truth = 0;    ///< max |d|, |t|

    static constexpr int kSums = 10;  ///< number of leading sums, which ranks add; of the rest they take the largest
    static constexpr int kNumbers = 12;
};

/// Sums over the lengths of a vector field: (|y| - |t|)^2 and |t|^2.
struct MagnitudeSums {
    double error_squared = 0, truth_squared = 0;
};

/// Errors of one field from the sums of its channels: rel_l2, rel_l1, mae, rmse, max_abs, rel_l2_area (with areas),
/// rmse_over_max, mae_over_max, r2, guess_rel_l2, guess_mae. Those of a vector take its components together (means are
/// over points and components, max_abs is of the worst component). Of a truth of zeros rel_l2 is as `relative_l2` says,
/// and what else would be divided by 0 is NaN. `guess_...`: the same error of the training mean.
Metrics field_metrics(std::span<const ChannelSums> channels);

/// Returns `field_metrics` with the field's name before each, and for vectors also `name.x.rel_l2`, ... of each
/// component and `name.mag.rel_l2` of the lengths.
Metrics named_field_metrics(const std::string& name, std::span<const ChannelSums> channels,
                            const MagnitudeSums& magnitudes);

/// Mean, median, standard deviation (of n, not n - 1) and largest over cases; values that are not finite are left out.
struct Spread {
    std::int64_t count = 0;
    double mean = 0, median = 0, deviation = 0, largest = 0;
    std::int64_t largest_case = -1;
};
Spread spread_of(std::span<const double> values);

/// A coefficient over cases: n, mae, bias (mean error), std, max_abs, mean_rel, r2 (NaN without spread), spearman (ties
/// get the mean of their ranks), pair_order (share of the pairs whose truths differ by more than 0.001 that are ordered
/// right), guess_mae (of `guess`).
Metrics coefficient_metrics(std::span<const double> predicted, std::span<const double> truth,
                            std::optional<double> guess);

/// Pearson's correlation of ranks; ties have the mean of their ranks. NaN below two values and where all are equal.
double spearman(std::span<const double> a, std::span<const double> b);

}  // namespace meshard
