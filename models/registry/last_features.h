// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/registry/registry.h"

#include <cstdint>

namespace meshard {

/// Computes what a model's last linear layer is given, averaged over the points of all ranks: by which a case can be
/// compared with others as the model sees them.
/// @param num_fields   channels of `model.forward`
/// @return (features), double, on the CPU, the same on every rank; undefined for a model without
/// `PointModel::last_layer`
at::Tensor mean_last_features(const Model& model, const PointInputs& inputs, std::int64_t num_fields);

}  // namespace meshard
