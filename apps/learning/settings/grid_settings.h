// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"

#include <string>
#include <vector>

namespace meshard {

/// Refuses what a configuration says of points and surfaces where its cases are regular grids (`data.grid`): normals, distances, forces, sampling, shards, ...
/// @throws UsageError naming the key
void refuse_keys_of_points(const Settings& settings);

/// @throws UsageError where `data.arrays` is missing or names an array twice
void check_grid_arrays(const Settings& settings, const std::vector<std::string>& arrays);

/// Refuses a model of grids for points, and one of points for grids. @throws UsageError with the names of those that fit
void require_matching_model(const Settings& settings, const ModelConfig& model, const DataConfig& data);

/// What can be checked of a model of grids before a case is read. @throws InvalidInput naming the argument
void check_grid_model(const ModelConfig& model);

/// Rows of a grid that are best left on one rank.
std::int64_t rows_together(const ModelConfig& model);

/// All arguments of the model for such grids. @throws InvalidInput where the configuration says otherwise, or the model takes no such grid
nlohmann::json grid_model_arguments(const ModelConfig& model, const GridWidths& widths);

}  // namespace meshard
