// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace meshard {

/// What a model with such a head gives.
struct FieldsAndCoefficients {
    at::Tensor fields;        ///< (B, N, fields), as without it
    at::Tensor coefficients;  ///< (B, coefficients): the same on every rank
};

/// Gives a model, of any kind, a head for numbers of a whole case, such as drag and lift: the last channels of each point, of which the model must have been
/// made with `num_features` more than its fields have, are averaged over all points of all ranks, and two linear layers with a GELU between them make the
/// numbers of the mean. Their parameters join those of the module as `coefficients.*`, and draw their initial values from LibTorch's default generator.
/// `model.forward` gives the fields alone from now on.
/// @throws InvalidInput for a model that has a part `coefficients`
std::function<FieldsAndCoefficients(const PointInputs&)> add_coefficient_head(Model& model, std::int64_t num_features, std::int64_t num_coefficients);

/// Coefficients of a case (1, coefficients), which the head learnt with mean 0 and deviation 1, in their own units. Collective where they are sharded.
std::vector<double> physical_coefficients(const at::Tensor& coefficients, const std::vector<double>& means, const std::vector<double>& deviations);

}  // namespace meshard
