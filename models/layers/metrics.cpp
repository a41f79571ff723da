// SPDX-License-Identifier: Apache-2.0
#include "models/layers/metrics.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace meshard {
namespace {

constexpr double kLeastTruth = 1e-8;  // smallest sum of squares by which errors are divided

}  // namespace

at::Tensor mean_squared_error(const at::Tensor& prediction, const at::Tensor& target)
{
    return torch::mse_loss(prediction, target);
}

double relative_l2(const at::Tensor& prediction, const at::Tensor& target)
{
    at::NoGradGuard no_grad;
    const auto truth = target.to(at::kDouble);
    const auto error = prediction.to(at::kDouble) - truth;
    const auto error_squared = (error * error).sum().item<double>();
    const auto truth_squared = (truth * truth).sum().item<double>();
    return std::sqrt(error_squared / std::max(truth_squared, kLeastTruth));
}

}  // namespace meshard
