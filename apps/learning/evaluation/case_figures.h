// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "apps/learning/settings/training_config.h"
#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"
#include "sharding/ranks/rank_group.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
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

/// Sums over the true fields of one case, by which its data are judged before a model is trained.
struct CaseFigures {
    /// Sums of one channel over the rows (cells or points) of the case.
    struct Channel {
        double sum = 0, squares = 0;  ///< sum t, t^2
        double low = 0, high = 0;     ///< least and largest t
    };

    std::int64_t num_rows = 0;
    std::int64_t num_cells_without_area = 0;
    bool is_surface = false;  ///< whether it is made of polygons, which have area vectors
    /// Forces of the true fields, without moments. Fields on points are averaged over a cell's corners.
    ForceSums forces;
    ShapeSums shape;
    std::array<double, 6> bounds{};                ///< box of the points: x, y and z, each lowest then highest
    double shear_size = 0;                         ///< sum |tau| A
    double normals_along = 0, normals_length = 0;  ///< sum n.a, sum |n| A of the array of normals; 0 without one
    std::vector<Channel> channels;                 ///< in the order of the fields
};

/// Computes the figures of each case from the parts in its shards folder. Ranks share out the parts, each of which is
/// read once; the result is the same on every rank. Collective.
/// @throws IoError for a folder that cannot be read; InvalidInput for a missing array
std::vector<CaseFigures> case_figures(std::span<const std::filesystem::path> shards, const DataConfig& data,
                                      const JudgedFields& layout, const RankGroup& ranks);

/// As `case_figures`, but reads the figures of each case from figures.json in its folder of the store
/// (apps/learning/store/case_store.h), whose name stands for all that they depend on. Figures whose file is missing or
/// damaged are computed, and written there unless the folder is read-only. Collective.
/// @param stored   folder of each case in the store
std::vector<CaseFigures> kept_case_figures(std::span<const std::filesystem::path> stored,
                                           std::span<const std::filesystem::path> shards, const DataConfig& data,
                                           const JudgedFields& layout, const RankGroup& ranks);

}  // namespace meshard
