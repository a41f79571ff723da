// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/shape_coefficients.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace meshard {

namespace {

struct Distances {
    double of_case = 0;               // distance from the nearest training case
    std::vector<double> among_cases;  // distance of each training case from the nearest other, ascending
};

/// Computes the distances by which `ShapeCoefficients::Values` tells how far a case lies from the training cases, from
/// rows of equal length.
Distances distances(const std::vector<std::vector<double>>& cases, const std::vector<double>& numbers)
{
    // A number that all training cases have in common counts too: it differs where it differs by more than this.
    constexpr double least_deviation = 1e-2;  // of numbers of shapes, and of a constant by its mean
    const auto n = static_cast<double>(cases.size());
    std::vector<double> deviations(numbers.size(), 0.0);
    for (std::size_t k = 0; k < numbers.size(); ++k) {
        double mean = 0;
        for (const auto& row : cases) mean += row[k] / n;
        for (const auto& row : cases) deviations[k] += (row[k] - mean) * (row[k] - mean) / n;
        deviations[k] = std::max(std::sqrt(deviations[k]), least_deviation * (k < kShapeNumbers ? 1 : std::abs(mean)));
    }
    const auto distance = [&](const std::vector<double>& a, const std::vector<double>& b) {
        double squares = 0;
        for (std::size_t k = 0; k < numbers.size(); ++k) {
            if (deviations[k] > 0) squares += std::pow((a[k] - b[k]) / deviations[k], 2);
        }
        return std::sqrt(squares);
    };
    const auto nearest = [&](const std::vector<double>& to, const std::vector<double>* self) {
        auto least = std::numeric_limits<double>::infinity();
        for (const auto& row : cases) {
            if (&row != self) least = std::min(least, distance(row, to));
        }
        return least;
    };
    Distances found{nearest(numbers, nullptr), {}};
    for (const auto& row : cases) found.among_cases.push_back(nearest(row, &row));
    std::ranges::sort(found.among_cases);
    return found;
}

}  // namespace

ShapeCoefficients::ShapeCoefficients(std::vector<std::vector<double>> numbers, std::vector<double> drag,
                                     std::vector<double> lift)
    : numbers_(std::move(numbers)), drags_(std::move(drag)), lifts_(std::move(lift))
{
}

std::optional<ShapeCoefficients> ShapeCoefficients::of_cases(std::span<const CaseSource> cases,
                                                             std::span<const CaseFigures> figures,
                                                             const DataConfig& data, const ForceSettings& settings,
                                                             const JudgedFields& layout)
{
    if (cases.size() < kFewestCases || layout.pressure < 0) return std::nullopt;
    const bool is_in_table = std::ranges::all_of(cases, [&](const auto& source) {
        return table_value(source, settings.drag) && table_value(source, settings.lift);
    });
    std::vector<std::vector<double>> numbers;
    std::vector<double> drag, lift;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        std::string why;
        const auto flow =
            figures[i].is_surface ? flow_reference(settings, cases[i], layout.pressure_kind, why) : std::nullopt;
        if (!flow) return std::nullopt;
        auto row = shape_numbers(figures[i].shape, figures[i].forces, figures[i].bounds, *flow);
        if (!row) return std::nullopt;
        const auto constants = constants_of_case(data, cases[i]);
        row->insert(row->end(), constants.begin(), constants.end());
        numbers.push_back(std::move(*row));
        const auto integrals = coefficients(figures[i].forces, *flow);
        drag.push_back(is_in_table ? *table_value(cases[i], settings.drag) : integrals.drag_true);
        lift.push_back(is_in_table ? *table_value(cases[i], settings.lift) : integrals.lift_true);
    }
    return ShapeCoefficients(std::move(numbers), std::move(drag), std::move(lift));
}

ShapeCoefficients ShapeCoefficients::from_json(const nlohmann::json& json)
{
    return {json.at("numbers").get<std::vector<std::vector<double>>>(), json.at("cd").get<std::vector<double>>(),
            json.at("cl").get<std::vector<double>>()};
}

nlohmann::json ShapeCoefficients::to_json() const
{
    return {{"numbers", numbers_}, {"cd", drags_}, {"cl", lifts_}};
}

std::optional<ShapeCoefficients::Values> ShapeCoefficients::of(const ShapeSums& shape, const ForceSums& forces,
                                                               const std::array<double, 6>& bounds,
                                                               const FlowReference& flow,
                                                               const std::vector<double>& constants) const
{
    auto row = shape_numbers(shape, forces, bounds, flow);
    if (!row) return std::nullopt;
    row->insert(row->end(), constants.begin(), constants.end());
    if (row->size() != numbers_.front().size()) return std::nullopt;  // the checkpoint has other numbers of shapes
    if (!learnt_) learnt_ = std::make_shared<const Regressions>(Regressions{{numbers_, drags_}, {numbers_, lifts_}});
    const auto [of_case, among_cases] = distances(numbers_, *row);
    const auto half = among_cases.size() / 2;
    const auto typical = 0.5 * (among_cases[half] + among_cases[(among_cases.size() - 1) / 2]);
    return Values{learnt_->drag(*row), learnt_->lift(*row), typical > 0 ? of_case / typical : 0,
                  of_case > among_cases.back()};
}

std::vector<double> constants_of_case(const DataConfig& data, const CaseSource& source)
{
    std::vector<double> constants;
    for (const auto& column : data.constants) constants.push_back(source.number(column));
    return constants;
}

}  // namespace meshard
