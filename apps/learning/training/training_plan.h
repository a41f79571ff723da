// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/transport/launch.h"

#include <string>

namespace meshard {

/// What a training step and a validation of this model would run on such a case: the model and its parameters, ranks, points of a rank, precision, memory mode,
/// and the form of each block with what keeps it from being fused. Lines of a word and what it is, the same on every rank. Collective.
/// @param model   in the memory mode and with the weights that it is to train with; it is left in training
/// @throws InvalidInput for a memory mode that the model cannot have
std::string training_plan(const Model& model, const TrainingRunConfig& config, const CaseTensors& example, const DeviceMesh& device_mesh, World& world);

}  // namespace meshard
