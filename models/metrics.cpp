// SPDX-License-Identifier: Apache-2.0
#include "models/metrics.h"

#include <cmath>

#include <torch/torch.h>

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
    return error_squared == 0 ? 0.0 : std::sqrt(error_squared / truth_squared);
}

}  // namespace meshard
