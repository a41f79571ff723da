// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/training/force_term.h"

#include "apps/learning/evaluation/field_metrics.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "partition/error.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

constexpr double kLeastDeviation = 0.001;  // of a coefficient: cases that are all alike

}  // namespace

ForceTerm::ForceTerm(std::array<double, 2> weights, const DataConfig& data, const JudgedFields& layout, const ForceSettings& settings,
                     std::span<const CaseSource> cases, std::span<const CaseFigures> figures, const at::Device& device)
    : layout_(layout), normals_(first_channel(data, "normals")), draws_by_area_(data.sampling == SamplingKind::Areas),
      weights_(torch::tensor({weights[0], weights[1]}).to(torch::kFloat).to(device))
{
    if (layout.pressure < 0)
        throw InvalidInput("training.force_weights: no field has the kind of a pressure (data.fields.NAME.kind: kinematic, static or cp).");
    std::array<std::vector<double>, 2> truths;
    std::vector<FlowReference> flows;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        std::string why;
        const auto flow = flow_reference(settings, cases[i], layout.pressure_kind, why);
        if (!flow) throw InvalidInput("training.force_weights: " + why + ".");
        if (!figures[i].is_surface || !(figures[i].forces.area > 0))
            throw InvalidInput("training.force_weights: case " + cases[i].id + " has no surface whose forces could be summed.");
        const auto truth = coefficients(figures[i].forces, *flow);
        truths[0].push_back(truth.drag_true);
        truths[1].push_back(truth.lift_true);
        flows.push_back(*flow);
    }
    for (int k = 0; k < 2; ++k) deviations_[k] = std::max(spread_of(truths[k]).deviation, kLeastDeviation);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const auto signs = signs_of(figures[i].forces, flows[i].drag);
        // Normals of an array may point against the order of the points; areas are stored divided by their mean.
        const auto mean_area = figures[i].forces.area / static_cast<double>(figures[i].num_rows);
        const auto normals_out = figures[i].normals_along < 0 ? -signs.normal : signs.normal;
        auto directions = torch::empty({3, 2}, torch::kDouble);
        for (int c = 0; c < 3; ++c) {
            directions[c][0] = flows[i].scale * flows[i].drag[c] / deviations_[0];
            directions[c][1] = flows[i].scale * flows[i].lift[c] / deviations_[1];
        }
        const auto placed = [&](double sign) { return (sign * directions).to(torch::kFloat).to(device); };
        cases_[cases[i].id] = {placed(-normals_out * mean_area), placed(signs.shear * mean_area), figures[i].num_rows};
    }
}

at::Tensor ForceTerm::operator()(const at::Tensor& difference, const CaseTensors& example) const
{
    const auto& of_case = cases_.at(example.id);
    const auto areas = draws_by_area_ && difference.size(1) < of_case.num_points ? torch::ones_like(example.measures) : example.measures;
    const auto vectors = example.inputs.embedding.narrow(-1, normals_, 3) * areas;
    const auto share = static_cast<double>(of_case.num_points) / static_cast<double>(difference.size(1));
    // (3) over all ranks, then (2): linear, so that the sums stay pending until they are squared.
    const auto forces = [&](const at::Tensor& rows, const at::Tensor& directions) {
        return (rows.sum(at::IntArrayRef{0, 1}).unsqueeze(-1) * directions).sum(0) * share;
    };
    auto errors = forces(difference.narrow(-1, layout_.pressure, 1) * vectors, of_case.of_pressure);
    if (layout_.shear >= 0) errors = errors + forces(difference.narrow(-1, layout_.shear, 3) * areas, of_case.of_shear);
    return (errors.square() * weights_).sum();
}

}  // namespace meshard
