// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/evaluation/error_histogram.h"

#include <torch/types.h>

namespace meshard {

std::vector<std::vector<double>> error_histograms(const at::Tensor& prediction, const at::Tensor& truth,
                                                  const JudgedFields& layout, const at::Tensor& deviations,
                                                  const RankGroup& group)
{
    const auto num_fields = std::ssize(layout.fields);
    auto counts = torch::zeros({num_fields, kHistogramBins + 2}, torch::kDouble);
    const auto units = deviations.to(torch::kDouble).cpu();  // those of channels that never changed are 0
    const auto errors = (prediction.to(torch::kDouble) - truth.to(torch::kDouble)) /
                        units.masked_fill(units.eq(0), 1);  // (N, channels)
    std::int64_t channel = 0;
    for (std::int64_t f = 0; f < num_fields; ++f) {
        const auto of_field = errors.narrow(1, channel, layout.channels[f]).flatten();
        const auto bins =
            ((of_field + 1) * (kHistogramBins / 2.0)).floor().clamp(-1, kHistogramBins).to(torch::kLong) + 1;
        counts[f] = torch::bincount(bins, {}, kHistogramBins + 2).to(torch::kDouble);
        channel += layout.channels[f];
    }
    group.all_reduce(counts);
    std::vector<std::vector<double>> all;
    for (std::int64_t f = 0; f < num_fields; ++f) {
        const auto* row = counts.const_data_ptr<double>() + f * (kHistogramBins + 2);
        all.emplace_back(row, row + kHistogramBins + 2);
    }
    return all;
}

}  // namespace meshard
