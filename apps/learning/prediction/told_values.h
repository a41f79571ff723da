// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/prediction/prediction.h"

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Returns the names to which a user may give values (`PredictionOptions::values`): inputs of the models, and
/// quantities that drag and lift depend on.
std::set<std::string> requested_names(std::span<const Predictor> models, bool with_forces);

/// A number that a user gives.
struct ToldValue {
    std::string name;
    bool is_required = false;    ///< nothing is predicted without it
    bool is_for_forces = false;  ///< the fields do not depend on it
    /// Lowest and highest value in the training cases of every model that is told it as a constant.
    std::optional<std::pair<double, double>> trained = {};
};

/// Returns `requested_names` with forces, by name.
std::vector<ToldValue> told_values(std::span<const Predictor> models);

/// Checks that the models are told all of a case that they need to know, and nothing that they do not know.
/// @param walls         files of surfaces, and `other_parts` of the cases' other parts; may be empty
/// @throws UsageError for a wall or other part that is missing or that no model is told, and for a value that no model
/// asks for, naming those that they ask for
void require_asked_for(std::span<const Predictor> models, const PredictionOptions& options,
                       const std::vector<std::string>& walls, const std::vector<std::string>& other_parts);

}  // namespace meshard
