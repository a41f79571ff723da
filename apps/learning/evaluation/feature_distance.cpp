// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/feature_distance.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <cmath>
#include <vector>

namespace meshard {

FeatureDistance::FeatureDistance(const at::Tensor& features) : features_(features), mean_(features.mean(0))
{
    constexpr double least_of_largest = 1e-2;  // deviations: a feature that is almost constant is no unit to measure by
    constexpr double ridge = 1e-3;             // variance that each direction has besides, by that of a feature
    const auto n = static_cast<double>(features.size(0));
    const auto offsets = features - mean_;
    auto deviations = offsets.square().mean(0).sqrt();
    deviations = at::maximum(deviations, (least_of_largest * deviations.max()).clamp_min(1e-30));
    const auto scaled = offsets / deviations;
    const auto scatter = at::mm(scaled.t(), scaled) + n * ridge * at::eye(features.size(1), features.options());
    const auto scale = deviations.reciprocal();
    inverse_ = at::linalg_inv(scatter) * scale.unsqueeze(0) * scale.unsqueeze(1);
    // Of each training case from the mean and scatter of the others (Sherman and Morrison 1950).
    const auto own = (at::mm(offsets, inverse_) * offsets).sum(1);
    const auto left_out = n / (n - 1) * ((n - 1) * own / (1 - n / (n - 1) * own)).sqrt();
    median_ = left_out.quantile(0.5).item<double>();
    largest_ = left_out.max().item<double>();
}

FeatureDistance FeatureDistance::from_json(const nlohmann::json& json)
{
    const auto rows = json.get<std::vector<std::vector<double>>>();
    auto features = at::empty({std::ssize(rows), std::ssize(rows.at(0))}, at::kDouble);
    for (std::size_t i = 0; i < rows.size(); ++i)
        features[static_cast<std::int64_t>(i)] = at::tensor(rows[i], at::kDouble);
    return FeatureDistance(features);
}

nlohmann::json FeatureDistance::to_json() const
{
    auto rows = nlohmann::json::array();
    for (std::int64_t i = 0; i < features_.size(0); ++i) {
        auto& row = rows.emplace_back();
        for (std::int64_t k = 0; k < features_.size(1); ++k)
            row.push_back(std::stod(fmt::format("{:.6g}", features_[i][k].item<double>())));
    }
    return rows;
}

FeatureDistance::Distance FeatureDistance::of(const at::Tensor& features) const
{
    const auto n = static_cast<double>(features_.size(0));
    const auto offset = features - mean_;
    const auto distance = std::sqrt(n * at::dot(offset, at::mv(inverse_, offset)).item<double>());
    return {median_ > 0 ? distance / median_ : 0, distance > largest_};
}

}  // namespace meshard
