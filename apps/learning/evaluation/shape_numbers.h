// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/force_metrics.h"
#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"
#include "sharding/ranks/rank_group.h"

#include <array>
#include <optional>
#include <vector>

namespace meshard {

/// Sums over the cells of a surface by the six ways in which they face, towards -x, x, -y, y, -z and z. They need not know where the flow comes from.
struct ShapeSums {
    static constexpr int kOfFacing = 8;
    static constexpr int kNumbers = 6 * kOfFacing;

    /// With w the area of a cell seen along the axis, n its normal and x its place: sum w; w n (3); w |n| (3); w x along the axis.
    std::array<double, kNumbers> numbers{};

    /// @param vector   area vector of a cell, by the order of its points
    void add(const Vector3& vector, const Vector3& place);
};

/// Over the cells of all ranks' meshes, of which some may be empty. Collective.
ShapeSums shape_sums(const Mesh& mesh, const RankGroup& group);

/// Numbers of a shape, without units, that may tell drag and lift apart, of the sides that face the flow (front) and that face away (rear), along the axes that
/// lie nearest to drag and lift: the mean of |n| along the flow, of n along lift and of |n| sideways, front and rear; the mean distance of the front from the
/// box's first plane and of the rear from its last, length and width of the box and its lowest place, all over the height of the box; the surface over the
/// area seen from the front.
/// @param bounds   of the case: x, y and z, each lowest then highest
/// @return kShapeNumbers; nothing for a surface without front, rear or height
std::optional<std::vector<double>> shape_numbers(const ShapeSums& shape, const ForceSums& forces, const std::array<double, 6>& bounds,
                                                 const FlowReference& flow);

inline constexpr int kShapeNumbers = 12;

}  // namespace meshard
