// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/evaluation.h"

#include <map>
#include <optional>
#include <span>
#include <string>

namespace meshard {

/// Errors of the coefficients that a model predicts by its fields, in validation cases: against the solver's of the
/// table where it has them, else against the integrals of the true fields. From them follows how far from a prediction
/// the truth may lie.
struct HeldOutErrors {
    std::map<std::string, double> drag, lift;  ///< predicted minus true, by case; none where there are no coefficients

    static HeldOutErrors of_split(const Evaluation& evaluation, const std::string& split);

    /// Returns the errors of models whose predictions are averaged: in each case that of the mean of the models which
    /// were judged by it, so that a case counts once. Over folds, whose models learn from the cases that others are
    /// judged by, this is cross-conformal prediction (Vovk, Annals of Mathematics and Artificial Intelligence 74,
    /// 2015).
    static HeldOutErrors of_mean(std::span<const HeldOutErrors> models);
};

inline constexpr double kCoverage = 0.9;

/// Computes half the width of the interval around a prediction that holds the truth of a further case with at least the
/// probability `kCoverage`, if that is drawn as the cases of the errors were: the ceil((n + 1) p)-th smallest error
/// (split conformal prediction; Lei et al., Journal of the American Statistical Association 113, 2018). Nothing for
/// fewer than p / (1 - p) errors.
std::optional<double> interval_of(const std::map<std::string, double>& errors_by_case);

}  // namespace meshard
