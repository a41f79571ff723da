// SPDX-License-Identifier: Apache-2.0
#include "models/layers/random_draws.h"

#include <ATen/Context.h>
#include <torch/nn/module.h>

#include <utility>

namespace meshard {

torch::Tensor uniform_of_rows(const torch::Tensor& x, RowNoise& noise)
{
    const auto like = x.detach();
    // Half precision has too few numbers below 1.
    return noise.draw(like.scalar_type() == torch::kDouble ? like : like.to(torch::kFloat));
}

RowDropoutImpl::RowDropoutImpl(double rate, std::shared_ptr<RowNoise> noise) : rate_(rate), noise_(std::move(noise)) {}

torch::Tensor RowDropoutImpl::forward(const torch::Tensor& x)
{
    if (!is_training() || rate_ == 0) return x;
    const auto is_kept = uniform_of_rows(x, *noise_).ge(rate_);  // saved for backward, one byte for each number
    return x.mul(is_kept).mul(rate_ < 1 ? 1 / (1 - rate_) : 0.0);
}

void seed_draws(torch::nn::Module& module, std::uint64_t seed)
{
    at::manual_seed(seed);
    for (const auto& part : module.modules()) {
        if (auto* model = dynamic_cast<DrawsNoise*>(part.get())) model->seed_noise(seed);
    }
}

}  // namespace meshard
