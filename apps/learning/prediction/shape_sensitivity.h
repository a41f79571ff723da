// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/prediction/movable_surface.h"
#include "apps/learning/prediction/predictor.h"
#include "apps/learning/prediction/shape_inputs.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

namespace meshard {

/// How a coefficient changes with the surface.
struct ShapeSensitivity {
    std::string coefficient;  ///< `Cd`
    double value = 0;         ///< of it
    at::Tensor gradient;      ///< (P, 3), double, on the host: by the coordinates of each point
    at::Tensor normal;        ///< (P): by moving a unit of area outward by a unit of length (`normal_part`)
};

/// Whether the coefficient is that of a moment, Cmx, Cmy or Cmz, which needs a reference length.
bool is_moment(const std::string& coefficient);

/// @throws UsageError that lists kForceCoefficients, for another name
void require_sensitive(std::span<const std::string> coefficients);

/// Adds up a model's coefficients and their derivatives by the points of a surface, by the whole chain: inputs, model,
/// fields, and forces on the moved surface. What the coefficient is divided by stays as it is. Neighbours stay those
/// that were found. Collective.
/// @param inputs   of `shape_inputs`; their type is that of the model
/// @param flow     with a length, if there are moments among the coefficients
/// @return gradients of this rank's rows: their sums over the ranks are those of the whole; values are of the whole
std::vector<ShapeSensitivity> shape_sensitivities(std::span<const std::string> coefficients, Predictor& model,
                                                  const MovableSurface& surface, const ShapeOfCase& shape,
                                                  const PointInputs& inputs, const FieldScaling& scaling,
                                                  const JudgedFields& layout, const FlowReference& flow,
                                                  const ForceSigns& signs, const RankGroup& ranks);

/// Returns the part of a gradient along the outward unit normals of the points, (P): divided by each point's share of
/// the areas around it, so that it does not depend on how fine the mesh is, and smoothed `kSmoothings` times: each
/// polygon takes the mean of its points, and each point the mean of its polygons, weighted by its shares of their
/// areas. Its integral over the surface stays that of the unsmoothed one. Zero at points without polygons.
/// @param normal_sign   -1 where polygons are right-handed seen from inside
at::Tensor normal_part(const at::Tensor& gradient, const MovableSurface& surface, int normal_sign);
inline constexpr int kSmoothings = 3;

}  // namespace meshard
