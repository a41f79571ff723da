// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/prediction/prediction_spread.h"

#include <ATen/ATen.h>

namespace meshard {

void PredictionSpread::add(const at::Tensor& rows)
{
    ++count_;
    if (count_ == 1) {
        first_ = rows;
        return;
    }
    if (count_ == 2) {
        mean_ = first_.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
        squares_ = at::zeros_like(mean_);
        first_.reset();
    }
    const auto value = rows.to(at::kDouble);
    const auto difference = value - mean_;
    mean_ += difference / static_cast<double>(count_);
    squares_ += difference * (value - mean_);
}

at::Tensor PredictionSpread::mean() const
{
    return count_ == 1 ? first_ : mean_.to(at::kFloat);
}

at::Tensor PredictionSpread::spread() const
{
    return count_ < 2 ? at::Tensor() : (squares_ / static_cast<double>(count_ - 1)).sqrt().to(at::kFloat);
}

}  // namespace meshard
