// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/prediction/prediction.h"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace meshard {

/// What a program without meshard must know to predict as a trained model does.
///
/// - `file`, `model_class`, `model`: the checkpoint, the class and its arguments
/// - `data`: the settings of the data (`to_json`)
/// - `fields`: name and number of `channels` of each, and the `factor`, `powers` and `is_above_p_inf` by which it is
///   measured (`FieldMeasure`)
/// - `constants`: names of the numbers that it is told of a case, and of those by which fields and points are measured
/// - `head`: `names`, `num_features`, `means` and `deviations` of a head for coefficients; null without one
nlohmann::json network_description(const Predictor& predictor);

/// Returns parameters and buffers by name, and as `norm.mean` and `norm.std` the statistics of the fields' channels.
std::vector<std::pair<std::string, at::Tensor>> network_tensors(const Predictor& predictor);

/// What a model is told of a mesh, before it is scaled.
struct MeshInputs {
    at::Tensor points;               ///< (rows, 3), float64: places in the mesh's own units
    std::array<double, 6> bounds{};  ///< lowest and highest x, y and z of the whole mesh
    /// `data.inputs` besides points, by name: (rows, channels), float32, distances in the mesh's own units, areas over
    /// their mean. Those that follow from points and bounds, height and box, are left out.
    std::vector<std::pair<std::string, at::Tensor>> others;
};

/// @throws as `predict_mesh`
MeshInputs mesh_inputs(const Predictor& predictor, const MeshInput& input, const PredictionOptions& options);

}  // namespace meshard
