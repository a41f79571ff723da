// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/transport/launch.h"

#include <functional>
#include <span>
#include <string>

namespace meshard {

/// Says what a training step and a validation of this model would run on such a case: the model and its parameters,
/// ranks, points of a rank, precision, memory mode, what each memory mode keeps of a point, whether that fits into the
/// device and on how many ranks it would, and the form of each block with what keeps it from being fused. Lines of a
/// word and what it is, the same on every rank. Collective.
/// @param model     in the memory mode and with the weights that it is to train with; it is left in training
/// @param example   the case, all its parts
/// @param forward   takes the case through the model
/// @throws InvalidInput for a memory mode that the model cannot have
std::string training_plan(const Model& model, const TrainingRunConfig& config, std::span<const CaseTensors> example,
                          const DeviceMesh& device_mesh, World& world, const std::function<void()>& forward);

}  // namespace meshard
