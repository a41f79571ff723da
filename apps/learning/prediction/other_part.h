// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"
#include "models/registry/registry.h"
#include "sharding/ranks/device_mesh.h"

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>

namespace meshard {

/// What a user is told where a model that needs both parts does not know the points of the other one.
inline constexpr const char* kOtherPartUnknown =
    "the points of the case's other part are not known; places drawn from the body stand for them, to which the model is less used.";

/// The points of a case's other part, for `PointInputs::other_part`: the first rank reads the mesh, and hands each rank a run of its rows. Collective.
/// @throws IoError, InvalidInput on the first rank if the file cannot be read: the program is to end then
std::shared_ptr<const PointInputs> read_other_part(const std::filesystem::path& file, const DataConfig& data, const CaseFrame& frame,
                                                   const std::shared_ptr<const DeviceMesh>& device_mesh, const at::Device& device);

}  // namespace meshard
