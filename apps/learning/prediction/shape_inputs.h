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

/// What a case's inputs depend on besides the points of its surface.
struct ShapeOfCase {
    const DataConfig& data;  ///< of the model, as it holds for this case
    CaseFrame frame;
    const Wall* wall = nullptr;          ///< null where the model is told of none
    std::span<const std::int64_t> rows;  ///< ids of this rank's cells or points
    std::string where;                   ///< begins messages
};

/// Whether the wall is the surface itself, so that it moves along: its triangles have the same points.
bool moves_along(const Wall& wall, const MovableSurface& surface);

/// Computes the inputs of `point_inputs`, and the body of `case_body`, as torch operations of the surface's points. The
/// box, what is made of it, and means over the surface move along; so does a wall that is the surface itself, and
/// others stay where they are. The nearest point of a wall stays on its triangle, edge or vertex. Collective.
/// @param known   the same inputs, as `point_inputs` and `case_body` computed them
/// @param type    of all tensors of the result
/// @throws UnusableInput naming an input that is not what is computed of the surface, such as an array of other normals
PointInputs shape_inputs(const MovableSurface& surface, const PointInputs& known, const ShapeOfCase& shape,
                         at::ScalarType type, const RankGroup& ranks);

}  // namespace meshard
