// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/settings/training_config.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace meshard {

/// A map of a whole scene, x -> matrix x + shift, in the model's coordinates: a reflection, then a rotation, then a
/// shift.
struct SceneMap {
    std::array<std::array<double, 3>, 3> matrix{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
    std::array<double, 3> shift{};
    bool is_mirrored = false;  ///< the matrix then has the determinant -1
};

/// Draws the map of a case in an epoch (from 1) as a function of the arguments alone, so that it is the same on any
/// number of ranks and in a resumed run. The rotation is about `up` (of any length but 0) by an angle that is uniform
/// within its bound, and so is each component of the shift.
SceneMap drawn_map(const AugmentationConfig& augmentation, const std::array<double, 3>& up, std::int64_t seed,
                   std::int64_t epoch, const std::string& case_id);

/// Maps a case. Positions go by the map. Normals, directions to the wall and fields whose kind is velocity, stress or
/// vector go by its matrix, axial fields by the matrix times its determinant, and tensors (9 components, row by row) by
/// the matrix from both sides. Distances, areas, heights and all other fields stay. Constants that are components of
/// the free stream turn with it, and sided constants change their sign in a mirror. No communication.
CaseTensors mapped_case(const CaseTensors& example, const SceneMap& map, const AugmentationConfig& augmentation,
                        const DataConfig& data);

/// Checks that the kind of each field says how the field turns.
/// @param channels   number of channels of each field
/// @throws InvalidInput naming the first field whose kind does not say it
void require_turnable(const DataConfig& data, std::span<const std::int64_t> channels);

/// Checks that a case does not lie on one side of the plane through the origin: that is half a body, whose mirror image
/// no prediction would see.
/// @param bounds   lowest and highest x, y and z of the case, in the file's frame
/// @throws InvalidInput naming the case
void require_whole_body(const std::string& case_id, const std::array<double, 6>& bounds, int axis);

}  // namespace meshard
