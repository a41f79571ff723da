// SPDX-License-Identifier: Apache-2.0
#include "models/layers/concrete_dropout.h"

#include "models/layers/random_draws.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshard {
namespace {

constexpr double kLeastRate = 0.05, kMostRate = 0.99;
constexpr double kLargestLogit = 10.0;
constexpr double kEpsilon = 1e-7;
constexpr double kSharpness = 0.1;  // the temperature of the relaxed Bernoulli draw

}  // namespace

ConcreteDropoutImpl::ConcreteDropoutImpl(double rate, std::shared_ptr<RowNoise> noise) : noise_(std::move(noise))
{
    const double start = std::clamp(rate, kLeastRate, kMostRate);
    p_logit_ = register_parameter("p_logit", torch::tensor(static_cast<float>(std::log(start) - std::log1p(-start))));
}

torch::Tensor ConcreteDropoutImpl::forward(const torch::Tensor& x)
{
    if (!is_training()) return x;
    const auto logit = p_logit_.clamp(-kLargestLogit, kLargestLogit);
    const auto uniform =
        (noise_ ? uniform_of_rows(x, *noise_).to(x.scalar_type()) : torch::rand_like(x)).clamp(kEpsilon, 1 - kEpsilon);
    const auto dropped = torch::sigmoid((torch::log(uniform) - torch::log1p(-uniform) + logit) / kSharpness);
    return x * (1 - dropped) / (1 - torch::sigmoid(logit) + kEpsilon);
}

}  // namespace meshard
