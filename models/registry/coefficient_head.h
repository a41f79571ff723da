// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace meshard {

/// Results of a model with a coefficient head.
struct FieldsAndCoefficients {
    at::Tensor fields;        ///< (B, N, fields), as without the head
    at::Tensor coefficients;  ///< (B, coefficients), equal on every rank
};

/// Gives a model of any kind a head for numbers of a whole case, such as drag and lift: the last `num_features`
/// channels of each point, which the model must have in addition to its fields, are averaged over all points of all
/// ranks, and two linear layers with a GELU in between compute the numbers from the mean. The head's parameters join
/// those of the module as `coefficients.*`, with initial values from LibTorch's default generator. From then on
/// `model.forward` returns the fields only.
/// @throws InvalidInput for a model that has a part `coefficients`
std::function<FieldsAndCoefficients(const PointInputs&)> add_coefficient_head(Model& model, std::int64_t num_features,
                                                                              std::int64_t num_coefficients);

/// Converts coefficients of a case (1, coefficients), which the head learns with mean 0 and deviation 1, to their own
/// units. Collective if they are sharded.
std::vector<double> physical_coefficients(const at::Tensor& coefficients, const std::vector<double>& means,
                                          const std::vector<double>& deviations);

}  // namespace meshard
