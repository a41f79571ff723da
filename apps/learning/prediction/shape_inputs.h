// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/cases/case_tensors.h"
#include "apps/learning/cases/computed_inputs.h"
#include "apps/learning/prediction/movable_surface.h"
#include "apps/learning/prediction/predictor.h"

#include <cstdint>
#include <span>
#include <string>

namespace meshard {

/// The wall of a case, of which the vertices that lie on a surface follow it.
struct MovingWall {
    at::Tensor vertices;           ///< (V, 3), double
    at::Tensor triangles;          ///< (T, 3)
    std::int64_t num_staying = 0;  ///< vertices that do not lie on the surface
};

/// A vertex counts as on the surface up to a hundred-thousandth of the surface's size, and keeps its place on the
/// triangle of `surface_triangles` on which it lies.
MovingWall moving_wall(const Wall& wall, const MovableSurface& surface);

/// What a case's inputs depend on besides the points of its surface.
struct ShapeOfCase {
    const DataConfig& data;  ///< of the model, as it holds for this case
    CaseFrame frame;
    const MovingWall* wall = nullptr;    ///< null where the model is told of none
    at::Tensor other_places;             ///< of this rank's points of the other part, which stay; may be undefined
    std::span<const std::int64_t> rows;  ///< ids of this rank's cells or points
    std::string where;                   ///< begins messages
};

/// Computes the inputs of `point_inputs`, and the body of `case_body`, as torch operations of the surface's points. The
/// box, what is made of it, and means over the surface move along. The nearest point of a wall stays on its triangle,
/// edge or vertex. Collective.
/// @param known   the same inputs, as `point_inputs` and `case_body` computed them
/// @param type    of all tensors of the result
/// @throws UnusableInput naming an input that is not what is computed of the surface, such as an array of other normals
PointInputs shape_inputs(const MovableSurface& surface, const PointInputs& known, const ShapeOfCase& shape,
                         at::ScalarType type, const RankGroup& ranks);

}  // namespace meshard
