// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/prediction_table.h"

#include "apps/console/text_table.h"

#include <c10/util/StringUtil.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace meshard {
namespace {

/// Columns of an input's coefficients, with a number or nothing each.
std::vector<std::pair<std::string, std::optional<double>>> coefficients_of(const PredictedForces& forces,
                                                                           bool with_moments)
{
    const auto of = [](const std::map<std::string, std::vector<double>>& all, const std::string& name) {
        const auto found = all.find(name);
        return MeanOfPredictions(found == all.end() ? std::vector<double>() : found->second);
    };
    std::vector<std::pair<std::string, std::optional<double>>> columns, deviations;
    for (const std::string name : std::span(kForceCoefficients).first(with_moments ? kForceCoefficients.size() : 3)) {
        columns.emplace_back(name, of(forces.of_fields, name).mean);
        deviations.emplace_back(name + "_std", of(forces.of_fields, name).deviation);
    }
    columns.insert(columns.end(), deviations.begin(), deviations.end());
    for (const std::string name : {"Cd", "Cl"}) {
        const auto found = forces.intervals.find(name);
        columns.emplace_back(name + "_interval",
                             found == forces.intervals.end() ? std::nullopt : std::optional(found->second));
    }
    for (const auto& [by, values] : {std::pair("_head", &forces.of_head), std::pair("_shape", &forces.of_shape)}) {
        for (const std::string name : {"Cd", "Cl"}) columns.emplace_back(name + by, of(*values, name).mean);
    }
    columns.emplace_back("isolation", MeanOfPredictions(forces.isolation).mean);
    columns.emplace_back("feature_isolation", MeanOfPredictions(forces.feature_isolation).mean);
    return columns;
}

/// Whether any input has moments, so that the tables have their columns.
bool has_moments(const std::vector<PredictedInput>& inputs)
{
    return std::ranges::any_of(inputs,
                               [](const auto& one) { return one.forces.of_fields.contains(kForceCoefficients[3]); });
}

}  // namespace

MeanOfPredictions::MeanOfPredictions(const std::vector<double>& values)
{
    if (values.empty()) return;
    const auto count = static_cast<double>(values.size());
    mean = 0;
    for (const auto value : values) *mean += value / count;
    if (values.size() == 1) return;
    double squares = 0;
    for (const auto value : values) squares += (value - *mean) * (value - *mean);
    deviation = std::sqrt(squares / (count - 1));
}

std::string MeanOfPredictions::text() const
{
    const auto text = fmt::format("{:.5f}", mean.value_or(0));
    return deviation ? fmt::format("{} ± {:.2g}", text, *deviation) : text;
}

std::string to_csv(const std::vector<PredictedInput>& inputs, const std::vector<std::string>& columns)
{
    std::string text = "input,output";
    const bool with_moments = has_moments(inputs);
    for (const auto& [name, value] : coefficients_of({}, with_moments)) text += "," + name;
    for (const auto& name : columns) text += "," + csv_text(name);
    text += ",note,warnings\n";
    for (const auto& one : inputs) {
        text += csv_text(one.input.string()) + "," + csv_text(one.output.string());
        for (const auto& [name, value] : coefficients_of(one.forces, with_moments))
            text += "," + (value ? exact_text(*value) : "");
        for (const auto& name : columns) {
            const auto value = one.values.find(name);
            text += "," + (value == one.values.end() ? "" : exact_text(value->second));
        }
        text += "," + csv_text(one.note) + "," + csv_text(c10::Join("; ", one.warnings)) + "\n";
    }
    return text;
}

Json to_json(const std::vector<PredictedInput>& inputs, const std::vector<Predictor>& models)
{
    Json json{{"models", Json::array()}, {"predictions", Json::array()}};
    const bool with_moments = has_moments(inputs);
    for (const auto& model : models) json["models"].push_back(model.checkpoint().string());
    const auto text_or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
    for (const auto& one : inputs) {
        Json row{{"input", one.input.string()}, {"output", text_or_null(one.output.string())}};
        for (const auto& [name, value] : coefficients_of(one.forces, with_moments))
            row[name] = value ? Json(*value) : Json(nullptr);
        row["values"] = one.values;
        row["note"] = text_or_null(one.note);
        row["warnings"] = one.warnings;
        json["predictions"].push_back(std::move(row));
    }
    return json;
}

}  // namespace meshard
