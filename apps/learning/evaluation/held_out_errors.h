// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/evaluation.h"

#include <optional>
#include <vector>

namespace meshard {

/// Errors of the coefficients that a model predicts by its fields, in validation cases: against the solver's of the
/// table where it has them, else against the integrals of the true fields. From them follows how far from a prediction
/// the truth may lie.
struct HeldOutErrors {
    std::vector<double> drag, lift;  ///< absolute, one a case; none where there are no coefficients

    static HeldOutErrors of_split(const Evaluation& evaluation, const std::string& split);

    /// Adds those of another model, whose predictions are averaged with this one's: over folds, whose models learn from
    /// the cases that others are judged by, this is cross-conformal prediction (Vovk, Annals of Mathematics and
    /// Artificial Intelligence 74, 2015).
    void add(const HeldOutErrors& other);
};

inline constexpr double kCoverage = 0.9;

/// Computes half the width of the interval around a prediction that holds the truth of a further case with at least
/// this probability, if that is drawn as the cases of the errors were: the ceil((n + 1) p)-th smallest error (split
/// conformal prediction; Lei et al., Journal of the American Statistical Association 113, 2018). Nothing for fewer than
/// p / (1 - p) errors.
std::optional<double> interval_of(std::vector<double> errors, double probability = kCoverage);

}  // namespace meshard
