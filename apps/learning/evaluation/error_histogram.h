// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/learning/evaluation/case_sums.h"

#include <vector>

namespace meshard {

/// Bins between -1 and 1; one more on either side has what lies beyond.
inline constexpr int kHistogramBins = 40;

/// How many points and components have which error, in deviations of the field over the training cases: of each field kHistogramBins + 2 counts, the first
/// of errors below -1, the last of those from 1 on. Over the owned rows of all ranks of `group`. Collective.
/// @param prediction, truth   (N, channels), this rank's rows   @param deviations   (channels), in the same units
std::vector<std::vector<double>> error_histograms(const at::Tensor& prediction, const at::Tensor& truth, const JudgedFields& layout,
                                                  const at::Tensor& deviations, const RankGroup& group);

}  // namespace meshard
