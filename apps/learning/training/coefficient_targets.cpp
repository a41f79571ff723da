// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/coefficient_targets.h"

#include "apps/learning/evaluation/field_metrics.h"
#include "partition/error.h"

#include <torch/types.h>

#include <algorithm>

namespace meshard {
namespace {

constexpr double kLeastSpread = 0.001;  // of a coefficient: cases that are all alike

/// Integrates the true fields.
Coefficients integrals_of(const CaseSource& source, const CaseFigures& figures, const JudgedFields& layout,
                          const ForceSettings& settings, const std::string& column)
{
    const auto refuse = [&](const std::string& why) {
        return InvalidInput("training.coefficient_weights: the table does not say the column " + column +
                            " (data.forces) of every training case, and " + why + ".");
    };
    if (layout.pressure < 0) throw refuse("no field has the kind of a pressure, whose integral would stand in");
    std::string why;
    const auto flow = flow_reference(settings, source, layout.pressure_kind, why);
    if (!flow) throw refuse("there is no integral in its place: " + why);
    if (!figures.is_surface || !(figures.forces.area > 0))
        throw refuse("case " + source.id + " has no surface whose forces could be summed");
    return coefficients(figures.forces, *flow);
}

}  // namespace

std::vector<std::string> names_of_coefficients(const std::array<double, 2>& weights)
{
    std::vector<std::string> names;
    if (weights[0] > 0) names.emplace_back("cd");
    if (weights[1] > 0) names.emplace_back("cl");
    return names;
}

CoefficientTargets::CoefficientTargets(std::array<double, 2> weights, const JudgedFields& layout,
                                       const ForceSettings& settings, std::span<const CaseSource> cases,
                                       std::span<const CaseFigures> figures, const at::Device& device)
{
    std::vector<std::vector<float>> rows(cases.size());
    std::vector<float> learnt;
    for (int k = 0; k < 2; ++k) {
        if (weights[k] == 0) continue;
        const auto& column = k == 0 ? settings.drag : settings.lift;
        const bool is_in_table =
            std::ranges::all_of(cases, [&](const auto& source) { return table_value(source, column).has_value(); });
        std::vector<double> truths;
        for (std::size_t i = 0; i < cases.size(); ++i) {
            if (is_in_table) {
                truths.push_back(*table_value(cases[i], column));
                continue;
            }
            const auto integrals = integrals_of(cases[i], figures[i], layout, settings, column);
            truths.push_back(integrals.all[k == 0 ? 0 : 1].truth);
        }
        const auto spread = spread_of(truths);
        means_.push_back(spread.mean);
        deviations_.push_back(std::max(spread.deviation, kLeastSpread));
        learnt.push_back(static_cast<float>(weights[k]));
        for (std::size_t i = 0; i < cases.size(); ++i)
            rows[i].push_back(static_cast<float>((truths[i] - means_.back()) / deviations_.back()));
    }
    weights_ = torch::tensor(learnt).to(device);
    for (std::size_t i = 0; i < cases.size(); ++i)
        targets_[cases[i].id] = torch::tensor(rows[i]).unsqueeze(0).to(device);
}

at::Tensor CoefficientTargets::loss(const at::Tensor& coefficients, const std::string& case_id) const
{
    return ((coefficients - targets_.at(case_id)).square() * weights_).sum();
}

}  // namespace meshard
