// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/prediction_table.h"

#include "apps/learning/evaluation/evaluation.h"

#include <fmt/core.h>

#include <cmath>

namespace meshard {
namespace {

/// Columns of an input's drag and lift, with a number or nothing each.
std::vector<std::pair<std::string, std::optional<double>>> coefficients_of(const PredictedForces& forces)
{
    const auto of = [](const std::map<std::string, std::vector<double>>& all, const char* name) {
        const auto found = all.find(name);
        return MeanOfPredictions(found == all.end() ? std::vector<double>() : found->second).mean;
    };
    const MeanOfPredictions drag(forces.drag), lift(forces.lift);
    return {{"Cd", drag.mean},
            {"Cl", lift.mean},
            {"Cd_std", drag.deviation},
            {"Cl_std", lift.deviation},
            {"Cd_head", of(forces.of_head, "Cd")},
            {"Cl_head", of(forces.of_head, "Cl")},
            {"Cd_shape", of(forces.of_shape, "Cd")},
            {"Cl_shape", of(forces.of_shape, "Cl")}};
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
    for (const auto& [name, value] : coefficients_of({})) text += "," + name;
    for (const auto& name : columns) text += "," + csv_text(name);
    text += ",note\n";
    for (const auto& one : inputs) {
        text += csv_text(one.input.string()) + "," + csv_text(one.output.string());
        for (const auto& [name, value] : coefficients_of(one.forces)) text += "," + (value ? exact_text(*value) : "");
        for (const auto& name : columns) {
            const auto value = one.values.find(name);
            text += "," + (value == one.values.end() ? "" : exact_text(value->second));
        }
        text += "," + csv_text(one.note) + "\n";
    }
    return text;
}

Json to_json(const std::vector<PredictedInput>& inputs, const std::vector<Predictor>& models)
{
    Json json{{"models", Json::array()}, {"predictions", Json::array()}};
    for (const auto& model : models) json["models"].push_back(model.checkpoint().string());
    const auto text_or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
    for (const auto& one : inputs) {
        Json row{{"input", one.input.string()}, {"output", text_or_null(one.output.string())}};
        for (const auto& [name, value] : coefficients_of(one.forces)) row[name] = value ? Json(*value) : Json(nullptr);
        row["values"] = one.values;
        row["note"] = text_or_null(one.note);
        json["predictions"].push_back(std::move(row));
    }
    return json;
}

}  // namespace meshard
