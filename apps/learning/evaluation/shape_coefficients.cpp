// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/shape_coefficients.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace meshard {

namespace {

// Lengths and noises of standardised numbers and values may be coarse, since the weights mix them.
constexpr std::array kLengths{0.7, 1.2, 2.0, 4.0};
constexpr std::array kNoises{0.03, 0.1, 0.3, 0.7};  // variances
constexpr double kVarianceOfConstant = 0.3;         // prior variance of the mean
constexpr double kLeastTelling = 1e-3;
constexpr int kStackingSteps = 400;
constexpr double kLeastWeight = 1e-6;

/// Evaluates the kernel between two sets of cases: (cases of a, cases of b).
at::Tensor kernel(const at::Tensor& a, const at::Tensor& b, const std::vector<std::int64_t>& columns, double length)
{
    const auto chosen = torch::tensor(columns);
    const auto apart = a.index_select(1, chosen).unsqueeze(1) - b.index_select(1, chosen).unsqueeze(0);
    return (apart.square().sum(2) / (-2 * length * length)).exp() + kVarianceOfConstant;
}

std::vector<std::vector<std::int64_t>> ones_and_pairs(const std::vector<std::int64_t>& columns)
{
    std::vector<std::vector<std::int64_t>> sets;
    for (std::size_t i = 0; i < columns.size(); ++i) {
        sets.push_back({columns[i]});
        for (std::size_t k = 0; k < i; ++k) sets.push_back({columns[k], columns[i]});
    }
    return sets;
}

/// Finds weights, not negative and with the sum 1, for which the weighted sum of the rows has least squares, by Frank
/// and Wolfe's method.
/// @param rows   (models, cases): errors
std::vector<double> least_squares_weights(const at::Tensor& rows)
{
    auto best = rows.square().sum(1).argmin().item<std::int64_t>();
    std::vector<double> weights(rows.size(0), 0.0);
    weights[best] = 1;
    auto sum = rows[best].clone();
    for (int step = 0; step < kStackingSteps; ++step) {
        best = rows.mv(sum).argmin().item<std::int64_t>();
        const auto towards = rows[best] - sum;
        const auto length = towards.dot(towards).item<double>();
        if (!(length > 0)) break;
        const auto share = std::clamp(-sum.dot(towards).item<double>() / length, 0.0, 1.0);
        for (auto& weight : weights) weight *= 1 - share;
        weights[best] += share;
        sum += share * towards;
    }
    return weights;
}

at::Tensor table_of(const std::vector<std::vector<double>>& rows)
{
    auto table = torch::empty({std::ssize(rows), std::ssize(rows.front())}, torch::kDouble);
    for (std::size_t i = 0; i < rows.size(); ++i)
        table[static_cast<std::int64_t>(i)].copy_(torch::tensor(rows[i], torch::kDouble));
    return table;
}

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

ShapeRegression::ShapeRegression(const std::vector<std::vector<double>>& numbers, const std::vector<double>& values)
{
    const auto num_given = std::ssize(numbers), num_cases = std::min(num_given, kMostCases);
    const auto chosen = torch::arange(num_cases).mul(num_given).div(num_cases, "floor");
    const auto given = table_of(numbers).index_select(0, chosen),
               truth = torch::tensor(values, torch::kDouble).index_select(0, chosen);
    means_ = given.mean(0);
    deviations_ = given.std(0, false);
    std::vector<std::int64_t> telling;
    for (std::int64_t c = 0; c < given.size(1); ++c) {
        if (deviations_[c].item<double>() > kLeastTelling) telling.push_back(c);
    }
    deviations_.clamp_min_(kLeastTelling);
    cases_ = standardised(given);
    mean_ = truth.mean().item<double>();
    deviation_ = truth.std(false).item<double>();
    if (telling.empty() || !(deviation_ > 0)) return;  // every prediction is the mean
    const auto wanted = (truth - mean_) / deviation_;

    std::vector<Process> all;
    std::vector<at::Tensor> errors;  // (cases) for each process: errors of each case predicted by the others
    for (const auto& columns : ones_and_pairs(telling)) {
        for (const auto length : kLengths) {
            const auto [variances, directions] = torch::linalg_eigh(kernel(cases_, cases_, columns, length));
            const auto along = directions.t().mv(wanted);
            for (const auto noise : kNoises) {
                const auto inverse = 1 / (variances + noise);
                const auto of_cases = directions.mv(inverse * along);
                errors.push_back(of_cases / directions.square().mv(inverse));
                all.push_back({columns, length, of_cases});
            }
        }
    }
    const auto weights = least_squares_weights(torch::stack(errors));
    for (std::size_t k = 0; k < all.size(); ++k) {
        if (weights[k] <= kLeastWeight) continue;
        all[k].of_cases *= weights[k];
        processes_.push_back(std::move(all[k]));
    }
}

at::Tensor ShapeRegression::standardised(const at::Tensor& numbers) const
{
    return (numbers - means_) / deviations_;
}

double ShapeRegression::operator()(std::span<const double> numbers) const
{
    const auto one =
        standardised(torch::tensor(std::vector<double>(numbers.begin(), numbers.end()), torch::kDouble)).unsqueeze(0);
    double sum = 0;
    for (const auto& process : processes_)
        sum += kernel(one, cases_, process.columns, process.length)[0].dot(process.of_cases).item<double>();
    return mean_ + deviation_ * sum;
}

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
        drag.push_back(is_in_table ? *table_value(cases[i], settings.drag) : integrals.all[0].truth);
        lift.push_back(is_in_table ? *table_value(cases[i], settings.lift) : integrals.all[1].truth);
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
