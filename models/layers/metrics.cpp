// SPDX-License-Identifier: Apache-2.0
#include "models/layers/metrics.h"

#include <torch/types.h>

#include <cmath>

namespace meshard {

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
    return relative_l2(error_squared, truth_squared);
}

double relative_l2(double error_squared, double truth_squared)
{
    constexpr double kOfZeros = 1e-8;
    return std::sqrt(error_squared / (truth_squared > 0 ? truth_squared : kOfZeros));
}

}  // namespace meshard
