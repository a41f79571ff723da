// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace meshard {

/// A map of a whole scene, x -> matrix x + shift, of places as the model is told them: a reflection, then a rotation, then a shift.
struct SceneMap {
    std::array<std::array<double, 3>, 3> matrix{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
    std::array<double, 3> shift{};
    bool is_mirrored = false;  ///< the matrix has the determinant -1
};

/// What is drawn for a case in an epoch (from 1): a function of the arguments alone, and so the same on any number of ranks and in a resumed run.
/// The rotation is about `up` (of any length but 0) by an angle that is uniform within its bound, and so is each component of the shift.
SceneMap drawn_map(const AugmentationConfig& augmentation, const std::array<double, 3>& up, std::int64_t seed, std::int64_t epoch, const std::string& case_id);

/// The case as it is in the mapped scene. Places go by the map; normals, directions to the wall and fields whose kind is velocity, stress or vector by its
/// matrix, axial ones by that times its determinant, tensors (9 components, row by row) by it from both sides; distances, areas, heights and all other fields
/// stay. Constants that are the free stream's components turn with it, those that belong to a side change their sign with the scene. No messages.
CaseTensors mapped_case(const CaseTensors& example, const SceneMap& map, const AugmentationConfig& augmentation, const DataConfig& data);

/// @param channels   of each field
/// @throws InvalidInput for a field of which it is not known how it turns
void require_turnable(const DataConfig& data, std::span<const std::int64_t> channels);

/// @param bounds    of the case, x, y and z, each lowest then highest, in the file's frame
/// @throws InvalidInput for a case that lies on one side of the plane through the origin: half a body, whose mirror image no prediction sees
void require_whole_body(const std::string& case_id, const std::array<double, 6>& bounds, int axis);

}  // namespace meshard
