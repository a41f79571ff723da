// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/prediction/prediction.h"

#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// Names that tell `predict` the reference area, and the length and the point of moments, where the run does not name
/// columns for them.
inline constexpr const char* kReferenceArea = "area";
inline constexpr const char* kMomentLength = "moment_length";
inline constexpr std::array kMomentCenter{"moment_x", "moment_y", "moment_z"};

/// Whether a run's `data.length` is a column of its case table: what `values` of `predict_file` may then say.
bool is_column(const std::string& length);

/// The settings of the model's run; where that says no reference area, it is the column kReferenceArea, and as the
/// length and the point of moments kMomentLength and kMomentCenter, by default the origin. Where the run has a number
/// for one of these, or for U_inf, rho or p_inf, a value of that name stands in its place; as U_inf it is the speed, in
/// the direction of the run's vector.
ForceSettings force_settings_of(const Predictor& model, const std::map<std::string, double>& values = {});

/// Names what a case must say of itself for the fields to be predicted: constants and the time, and of the quantities
/// by which fields are measured the columns, or the quantity itself where `data.reference` does not say it.
std::set<std::string> required_names(const DataConfig& data);

/// Columns that drag and lift need, and that neither the run nor `values` give (the area and the density above 0).
std::vector<std::string> missing_for_forces(const Predictor& model, const std::map<std::string, double>& values);

/// A case as options say it. Both settings have the numbers of this case in place of the run's, so that fields and
/// coefficients are measured by the same.
struct SaidCase {
    DataConfig data;       ///< the model's settings of data
    CaseSource source;     ///< its columns are the options' values
    ForceSettings forces;  ///< by `force_settings_of`
};

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

/// @param warns   where a value is missing without which a model predicts all the same, or is another than the run's
/// @throws UsageError naming what is missing
SaidCase said_case(const Predictor& model, const PredictionOptions& options, const std::string& name, bool warns);

/// The same for each of several models.
/// @throws InvalidInput, naming two models, if they do not predict the same flow in the same units: what is known of
/// U_inf, rho, p_inf, T_inf and L, as far as fields of their kinds are measured by them, and of the free stream's
/// direction is not the same in this case; with forces also the area, length, centre and `up`
std::vector<SaidCase> said_cases(std::span<const Predictor> models, const PredictionOptions& options,
                                 const std::string& name, bool warns);

}  // namespace meshard
