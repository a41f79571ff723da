// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/settings/settings.h"
#include "apps/learning/settings/training_config.h"

#include <string>
#include <vector>

namespace meshard {

/// Refuses settings for points and surfaces (normals, distances, forces, sampling, shards, ...) if the cases are
/// regular grids (`data.grid`).
/// @throws UsageError naming the key
void refuse_keys_of_points(const Settings& settings);

/// @throws UsageError where `data.arrays` is missing or names an array twice
void check_grid_arrays(const Settings& settings, const std::vector<std::string>& arrays);

/// Refuses a grid model for points and a point model for grids. @throws UsageError with the names of those that fit
void require_matching_model(const Settings& settings, const ModelConfig& model, const DataConfig& data);

/// Refuses settings of training that a denoiser does not support. @throws UsageError naming the key
void check_denoiser(const Settings& settings, const TrainingRunConfig& config);

/// Whether layers of a grid model read grid neighbours.
bool reads_neighbors(const ModelConfig& model);

/// Checks a grid model's arguments as far as possible before a case is read. @throws InvalidInput naming the argument
void check_grid_model(const ModelConfig& model);

/// Returns how many rows of a grid should stay together on one rank.
std::int64_t rows_together(const ModelConfig& model);

/// Returns all arguments of a model for such grids; the network of a denoiser takes the fields beside the inputs.
/// @throws InvalidInput if the configuration contradicts them, or the model takes no such grid
nlohmann::json grid_model_arguments(const ModelConfig& model, GridWidths widths);

}  // namespace meshard
