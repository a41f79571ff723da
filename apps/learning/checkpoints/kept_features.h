// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/feature_distance.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace meshard {

inline constexpr std::int64_t kPointsOfFeatures = 512;  ///< of a case, at most: a small share of a prediction

/// Keeps, in features.json beside a checkpoint, what its model's last layer is given of the training cases.
/// @param step   of the checkpoint
/// @throws IoError if the file cannot be written
void keep_features(const std::filesystem::path& checkpoint, std::int64_t step, const FeatureDistance& features);

/// Reads what is kept beside a checkpoint; nothing if there is nothing, or if it is of another checkpoint's step.
/// @throws IoError naming the file if it is damaged
std::optional<FeatureDistance> kept_features(const std::filesystem::path& checkpoint, std::int64_t step);

}  // namespace meshard
