// SPDX-License-Identifier: Apache-2.0
#include "models/layers/normalizer.h"

#include "partition/error.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace meshard {

namespace {

constexpr float kRounding = std::numeric_limits<float>::epsilon() / 2;

std::vector<double> numbers_of(const at::Tensor& channels)
{
    if (!channels.defined()) return {};
    const auto on_host = channels.to(at::kCPU, at::kDouble).contiguous();
    return {on_host.const_data_ptr<double>(), on_host.const_data_ptr<double>() + on_host.numel()};
}

}  // namespace

at::Tensor zero_for_nan(const at::Tensor& x)
{
    return x.masked_fill(x.ne(x), 0);
}

ChannelStatistics::ChannelStatistics(std::int64_t num_rows, const std::vector<double>& mean,
                                     const std::vector<double>& squared_differences)
    : num_rows_(num_rows)
{
    if (num_rows == 0) return;
    mean_ = torch::tensor(mean, torch::kDouble);
    squared_sum_ = torch::tensor(squared_differences, torch::kDouble);
}

void ChannelStatistics::add(const at::Tensor& rows)
{
    if (rows.dim() != 2)
        throw InvalidInput("ChannelStatistics: rows must be (points, channels), and have {} dimensions.", rows.dim());
    const auto n = rows.size(0);
    ChannelStatistics added;
    if (n > 0) {
        at::NoGradGuard no_grad;
        const auto values = rows.to(at::kDouble);
        added.num_rows_ = n;
        added.mean_ = values.sum(0) / n;
        const auto differences = values - added.mean_;
        added.squared_sum_ = (differences * differences).sum(0);
    } else {
        added.mean_ = torch::zeros({rows.size(1)}, torch::kDouble);
    }
    merge(added);
}

void ChannelStatistics::merge(const ChannelStatistics& other)
{
    if (mean_.defined() && other.mean_.defined() && other.mean_.size(0) != mean_.size(0)) {
        throw InvalidInput("ChannelStatistics: {} channels after tensors of {}.", other.mean_.size(0), mean_.size(0));
    }
    if (other.num_rows_ == 0) return;
    const auto before = static_cast<double>(num_rows_);
    num_rows_ += other.num_rows_;
    if (before == 0) {
        mean_ = other.mean_;
        squared_sum_ = other.squared_sum_;
        return;
    }
    const auto step = other.mean_ - mean_;
    const auto share = static_cast<double>(other.num_rows_) / static_cast<double>(num_rows_);
    squared_sum_ = squared_sum_ + other.squared_sum_ + step * step * (before * share);
    mean_ = mean_ + step * share;
}

ChannelStatistics ChannelStatistics::mapped(const at::Tensor& shift, const at::Tensor& scale) const
{
    if (num_rows_ == 0) return *this;
    const auto divisor = scale.to(mean_.device(), at::kDouble);
    auto result = *this;
    result.mean_ = (mean_ - shift.to(mean_.device(), at::kDouble)) / divisor;
    result.squared_sum_ = squared_sum_ / divisor.square();
    return result;
}

std::vector<double> ChannelStatistics::mean() const
{
    return numbers_of(mean_);
}

std::vector<double> ChannelStatistics::squared_differences() const
{
    return numbers_of(squared_sum_);
}

Normalizer ChannelStatistics::normalizer(std::span<const std::pair<std::int64_t, std::int64_t>> vectors) const
{
    if (num_rows_ < 2)
        throw InvalidInput("standard deviations need at least two rows, and all cases together have {}. Add "
                           "cases or points.",
                           num_rows_);
    const auto num_channels = mean_.size(0);
    std::vector<float> mean(num_channels), std(num_channels);
    for (std::int64_t c = 0; c < num_channels; ++c) {
        mean[c] = static_cast<float>(mean_[c].item<double>());
        const auto variance = squared_sum_[c].item<double>() / static_cast<double>(num_rows_ - 1);
        const auto deviation = static_cast<float>(std::sqrt(variance));
        std[c] = deviation > kRounding * std::abs(mean[c]) ? deviation : 0.0F;
    }
    for (const auto& [first, count] : vectors) {
        double squares = 0;
        for (auto c = first; c < first + count; ++c) {
            const auto center = mean_[c].item<double>();
            squares += squared_sum_[c].item<double>() / static_cast<double>(num_rows_) + center * center;
        }
        std::fill_n(mean.begin() + first, count, 0.0F);
        std::fill_n(std.begin() + first, count, static_cast<float>(std::sqrt(squares / static_cast<double>(count))));
    }
    return {torch::tensor(mean), torch::tensor(std)};
}

}  // namespace meshard
