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

/// Sums over the cells of a surface that face -x, x, -y, y, -z and z, which do not depend on the flow.
struct ShapeSums {
    static constexpr int kOfFacing = 8;
    static constexpr int kNumbers = 6 * kOfFacing;

    /// With w the area of a cell seen along the axis, n its normal and x its place: sum w; w n (3); w |n| (3); w x
    /// along the axis.
    std::array<double, kNumbers> numbers{};

    /// Adds a cell.
    /// @param vector   its area vector, by the order of its points
    void add(const Vector3& vector, const Vector3& place);
};

/// Sums over the cells of the meshes of all ranks, some of which may be empty. Collective.
ShapeSums shape_sums(const Mesh& mesh, const RankGroup& group);

/// Computes dimensionless numbers of a shape on which drag and lift may depend, along the axes nearest to drag and
/// lift. First for the side that faces the flow (front), then for the one that faces away (rear): the means of |n|
/// along the flow, of n along lift and of |n| sideways, and the mean distance from the box's first plane (front) or
/// last plane (rear). Then length, width and lowest place of the box. The height of the box divides all lengths. Last
/// comes the surface over the area seen from the front.
/// @param bounds   box of the case: x, y and z, each lowest then highest
/// @return kShapeNumbers values; nothing for a surface without front, rear or height
std::optional<std::vector<double>> shape_numbers(const ShapeSums& shape, const ForceSums& forces,
                                                 const std::array<double, 6>& bounds, const FlowReference& flow);

inline constexpr int kShapeNumbers = 12;

}  // namespace meshard
