// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/shape_sensitivity.h"

#include "apps/console/console.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"
#include "sharding/tensor/shard_tensor.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>

namespace meshard {
namespace {

/// Axis of a moment, or -1 for a force.
int axis_of(const std::string& coefficient)
{
    return coefficient.starts_with("Cm") ? coefficient.back() - 'x' : -1;
}

Vector3 direction_of(const std::string& coefficient, const FlowReference& flow)
{
    if (const int axis = axis_of(coefficient); axis >= 0) {
        Vector3 along{};
        along[axis] = 1;
        return along;
    }
    if (coefficient == "Cd") return flow.drag;
    return coefficient == "Cl" ? flow.lift : cross(flow.lift, flow.drag);
}

at::Tensor as_tensor(const Vector3& vector, const at::Device& device)
{
    return torch::tensor(std::vector<double>(vector.begin(), vector.end()), torch::kDouble).to(device);
}

}  // namespace

bool is_moment(const std::string& coefficient)
{
    return axis_of(coefficient) >= 0;
}

void require_sensitive(std::span<const std::string> coefficients)
{
    for (const auto& name : coefficients)
        if (!contains(kForceCoefficients, name))
            throw UsageError("no sensitivity of '{}'; there are those of {}.", name,
                             c10::Join(", ", kForceCoefficients));
}

std::vector<ShapeSensitivity> shape_sensitivities(std::span<const std::string> coefficients, Predictor& model,
                                                  const MovableSurface& surface, const ShapeOfCase& shape,
                                                  const PointInputs& inputs, const FieldScaling& scaling,
                                                  const JudgedFields& layout, const FlowReference& flow,
                                                  const ForceSigns& signs, const RankGroup& ranks)
{
    const auto fields = to_local(model.predict_differentiably(inputs, scaling)).squeeze(0).to(torch::kDouble);
    const auto rows = torch::tensor(std::vector<std::int64_t>(shape.rows.begin(), shape.rows.end()), torch::kLong)
                          .to(fields.device());
    const auto of_rows = [&](const at::Tensor& of_cells) {
        return (shape.data.on_cells ? of_cells : surface.shares_at_points(of_cells)).index_select(0, rows);
    };
    const auto vectors = surface.area_vectors(), areas = lengths_of(vectors).unsqueeze(1);
    const auto pressure = -signs.normal * (fields.narrow(1, layout.pressure, 1) - flow.ambient);
    const auto shear = layout.shear < 0 ? at::Tensor() : signs.shear * fields.narrow(1, layout.shear, 3);
    auto force = (pressure * of_rows(vectors)).sum(0);
    if (shear.defined()) force = force + (shear * of_rows(areas)).sum(0);
    at::Tensor moment;
    if (std::ranges::any_of(coefficients, is_moment)) {
        const auto arms = surface.centroids();
        moment = (pressure * of_rows(torch::linalg_cross(arms, vectors))).sum(0);
        if (shear.defined()) moment = moment + torch::linalg_cross(of_rows(arms * areas), shear).sum(0);
        moment = (moment - torch::linalg_cross(as_tensor(flow.center, force.device()), force)) / *flow.length;
    }
    std::vector<ShapeSensitivity> all;
    for (const auto& name : coefficients) {
        const auto along = as_tensor(direction_of(name, flow), force.device());
        const auto coefficient = flow.scale * (is_moment(name) ? moment : force).dot(along);
        const bool is_last = &name == &coefficients.back();
        auto gradient = torch::autograd::grad({coefficient}, {surface.points()}, {}, /*retain_graph=*/!is_last)[0];
        auto value = coefficient.detach().clone().to(torch::kCPU).view({1});
        ranks.all_reduce(value);
        all.push_back({name, value.item<double>(), gradient.to(torch::kCPU), {}});
    }
    return all;
}

at::Tensor normal_part(const at::Tensor& gradient, const MovableSurface& surface, int normal_sign)
{
    const torch::NoGradGuard no_grad;
    const auto vectors = surface.area_vectors();
    const auto areas = lengths_of(vectors);
    const auto around = surface.sums_at_points(vectors);
    const auto normals = normal_sign * around / lengths_of(around).clamp_min(1e-300).unsqueeze(1);
    const auto shares = surface.shares_at_points(areas);
    const auto divisor = torch::where(shares > 0, shares, torch::ones_like(shares));
    auto normal = (gradient.to(normals.device()) * normals).sum(1) / divisor * (shares > 0);
    for (int i = 0; i < kSmoothings; ++i)
        normal = surface.shares_at_points(surface.means_in_cells(normal) * areas) / divisor;
    return normal.to(torch::kCPU);
}

}  // namespace meshard
