// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"

#include <array>
#include <string>
#include <vector>

namespace meshard {

/// Where a case has most of a field's error: one of the kRegionsAlong^3 equal boxes that fill the case's bounding box.
struct ErrorRegion {
    std::array<double, 6> bounds{};  ///< x, y and z, each lowest then highest
    double error_share = 0;          ///< share of the case's sum of squared errors
    double row_share = 0;            ///< share of its points or cells

    /// Returns e.g. `34 % of its squared error lies in 3 % of its cells, x 0.9 to 1.04, y ...`, or `of its points`.
    std::string text(bool on_cells) const;
};

inline constexpr std::int64_t kRegionsAlong = 4;

/// Finds for each field the box with the largest sum of squared errors, over the owned rows of all ranks of `group`.
/// Collective.
/// @param prediction, truth   (N, channels), this rank's rows
/// @param geometry   (N, kGeometryColumns), double
/// @param bounds   box of the case
std::vector<ErrorRegion> error_regions(const at::Tensor& prediction, const at::Tensor& truth,
                                       const at::Tensor& geometry, const JudgedFields& layout,
                                       const std::array<double, 6>& bounds, const RankGroup& group);

}  // namespace meshard
