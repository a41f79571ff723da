// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>

namespace meshard {

/// Tells how far a case lies from the training cases as a model sees them: Mahalanobis' distance from their mean, of
/// what the model's last layer is given (models/registry/last_features.h). Directions in which the training cases
/// hardly differ count as if they differed by a little.
class FeatureDistance {
public:
    struct Distance {
        /// The distance over the median of that of a training case from the mean of the others.
        double isolation = 0;
        bool is_outside = false;  ///< whether it is larger than each training case's
    };

    /// @param features   (cases, features), double, on the CPU; of kFewestCases or more
    explicit FeatureDistance(const at::Tensor& features);

    static FeatureDistance from_json(const nlohmann::json& json);
    nlohmann::json to_json() const;  ///< a row a case, with six digits

    /// @param features   (features), double, on the CPU; of as many as the training cases'
    Distance of(const at::Tensor& features) const;
    std::int64_t num_features() const { return features_.size(1); }

    static constexpr std::int64_t kFewestCases = 10;

private:
    at::Tensor features_, mean_, inverse_;  // inverse_ of the scatter, not of the covariance
    double median_ = 0, largest_ = 0;       // of the training cases
};

}  // namespace meshard
