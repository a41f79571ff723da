// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"

#include <vector>

namespace meshard {

/// Number of bins between -1 and 1; one more on either side counts what lies beyond.
inline constexpr int kHistogramBins = 40;

/// Counts the errors of each field's points and components, in deviations of the field over the training cases:
/// kHistogramBins + 2 counts a field, the first for errors below -1, the last for errors from 1 on. Counts are over the
/// owned rows of all ranks of `group`. Collective.
/// @param prediction, truth   (N, channels), this rank's rows   @param deviations   (channels), in the same units
std::vector<std::vector<double>> error_histograms(const at::Tensor& prediction, const at::Tensor& truth,
                                                  const JudgedFields& layout, const at::Tensor& deviations,
                                                  const RankGroup& group);

}  // namespace meshard
