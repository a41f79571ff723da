// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/console/json_report.h"
#include "apps/learning/prediction/prediction.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// What `predict` tells of one input.
struct PredictedInput {
    std::filesystem::path input, output;  ///< the output is empty where nothing could be predicted
    std::map<std::string, double> values;
    PredictedForces forces;
    std::string note;                   ///< why there is no prediction, or no coefficients
    std::vector<std::string> warnings;  ///< of this input, a sentence each
};

/// Of several predictions the mean and the standard deviation (of n - 1).
struct MeanOfPredictions {
    explicit MeanOfPredictions(const std::vector<double>& values);
    std::string text() const;  ///< `0.3012 ± 0.0034`

    std::optional<double> mean, deviation;  ///< nothing of no prediction; no deviation of one
};

/// A row an input: `input`, `output`, Cd, Cl and Cs by the fields, and moments where an input has them, their
/// deviations, Cd and Cl by a head of the model and by the shape alone, the columns that were told, `note`, and
/// `warnings`, joined by `; `.
/// @param columns   of `values`
std::string to_csv(const std::vector<PredictedInput>& inputs, const std::vector<std::string>& columns);

/// {models, predictions: [{input, output, Cd, ..., values, note, warnings}]}; what there is not is null.
Json to_json(const std::vector<PredictedInput>& inputs, const std::vector<Predictor>& models);

}  // namespace meshard
