// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"
#include "apps/learning/evaluation/force_metrics.h"
#include "apps/learning/evaluation/shape_numbers.h"
#include "apps/learning/settings/training_config.h"
#include "sharding/ranks/rank_group.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace meshard {

/// Sums over the true fields of one case: what can be said of its data before a model has seen them.
struct CaseFigures {
    /// Of one channel, over the case's rows (cells or points).
    struct Channel {
        double sum = 0, squares = 0;  ///< sum t, t^2
        double low = 0, high = 0;     ///< least and largest t
    };

    std::int64_t num_rows = 0;
    std::int64_t num_cells_without_area = 0;
    bool is_surface = false;                       ///< made of polygons: it has area vectors
    ForceSums forces;                              ///< of the truth alone; on points a cell has the mean of its corners
    ShapeSums shape;                               ///< of the cells
    std::array<double, 6> bounds{};                ///< of the points: x, y and z, each lowest then highest
    double shear_size = 0;                         ///< sum |tau| A
    double normals_along = 0, normals_length = 0;  ///< sum n.a, |n| A of the array of normals; 0 where there is none
    std::vector<Channel> channels;                 ///< in the order of the fields
};

/// Of each case, from the parts of its shards folder, which the ranks share out: each part is read once, by one rank. The same on every rank. Collective.
/// @throws IoError for a folder that cannot be read; InvalidInput for a missing array
std::vector<CaseFigures> case_figures(std::span<const std::filesystem::path> shards, const DataConfig& data, const JudgedFields& layout,
                                      const RankGroup& ranks);

/// The same, each case's kept in figures.json of its folder in the store (apps/learning/store/case_store.h), whose name stands for all that they depend on:
/// read there, and computed only where the file is missing or damaged. A folder that cannot be written is left as it is. Collective.
/// @param stored   of each case its folder in the store
std::vector<CaseFigures> kept_case_figures(std::span<const std::filesystem::path> stored, std::span<const std::filesystem::path> shards, const DataConfig& data,
                                           const JudgedFields& layout, const RankGroup& ranks);

}  // namespace meshard
