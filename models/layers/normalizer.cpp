// SPDX-License-Identifier: Apache-2.0
#include "models/layers/normalizer.h"

#include "partition/error.h"

#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace meshard {

void ChannelStatistics::add(const at::Tensor& rows)
{
    if (rows.dim() != 2) throw InvalidInput("ChannelStatistics: rows must be (points, channels), and have " + std::to_string(rows.dim()) + " dimensions.");
    if (mean_.defined() && rows.size(1) != mean_.size(0)) {
        throw InvalidInput("ChannelStatistics: " + std::to_string(rows.size(1)) + " channels after tensors of " + std::to_string(mean_.size(0)) + ".");
    }
    const auto n = rows.size(0);
    if (n == 0) return;

    at::NoGradGuard no_grad;
    const auto values = rows.to(at::kDouble);
    const auto mean = values.sum(0) / n;
    const auto differences = values - mean;
    const auto squared_sum = (differences * differences).sum(0);
    const auto before = static_cast<double>(num_rows_);
    num_rows_ += n;
    if (before == 0) {
        mean_ = mean;
        squared_sum_ = squared_sum;
        return;
    }
    const auto step = mean - mean_;
    const auto share = static_cast<double>(n) / static_cast<double>(num_rows_);
    squared_sum_ = squared_sum_ + squared_sum + step * step * (before * share);
    mean_ = mean_ + step * share;
}

Normalizer ChannelStatistics::normalizer() const
{
    if (num_rows_ < 2) throw InvalidInput("ChannelStatistics: a standard deviation needs at least two rows, and there are " + std::to_string(num_rows_) + ".");
    const auto num_channels = mean_.size(0);
    std::vector<float> mean(num_channels), std(num_channels);
    for (std::int64_t c = 0; c < num_channels; ++c) {
        mean[c] = static_cast<float>(mean_[c].item<double>());
        const auto variance = squared_sum_[c].item<double>() / static_cast<double>(num_rows_ - 1);
        std[c] = variance > 0 ? static_cast<float>(std::sqrt(variance)) : 1.0F;
    }
    return {torch::tensor(mean), torch::tensor(std)};
}

}  // namespace meshard
