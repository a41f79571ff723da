// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/edm_sampling.h"

#include "models/diffusion/grid_noise.h"
#include "models/layers/option_checks.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace meshard {

void EdmSampling::validate() const
{
    const OptionChecks checks("generate");
    checks.at_least(1, {{"the number of steps", num_steps}});
    const auto refuse = [&](const std::string& what, double value) { checks.refuse("{}, and is {:g}.", what, value); };
    if (!(sigma_min > 0)) refuse("sigma_min must be positive", sigma_min);
    if (!(sigma_max > sigma_min) || !std::isfinite(sigma_max))
        refuse("sigma_max must be larger than sigma_min", sigma_max);
    if (!(rho > 0)) refuse("rho must be positive", rho);
    if (!(churn >= 0)) refuse("churn must not be negative", churn);
}

double drawn_level(std::uint64_t seed)
{
    return std::exp(kMeanLevel + kLevelDeviation * normal_number(seed));
}

double loss_weight(double level)
{
    return 1 + 1 / (level * level);
}

std::vector<double> noise_levels(const EdmSampling& sampling)
{
    const auto root = [&](double sigma) { return std::pow(sigma, 1 / sampling.rho); };
    std::vector<double> levels;
    for (std::int64_t i = 0; i < sampling.num_steps; ++i) {
        const auto part =
            sampling.num_steps > 1 ? static_cast<double>(i) / static_cast<double>(sampling.num_steps - 1) : 0.0;
        levels.push_back(std::pow(
            root(sampling.sigma_max) + part * (root(sampling.sigma_min) - root(sampling.sigma_max)), sampling.rho));
    }
    levels.push_back(0);
    return levels;
}

at::Tensor follow_noise_levels(EdmPreconditioner& model, const at::Tensor& start, const std::vector<double>& levels,
                               const DenoiserCondition& condition, const EdmSampling& sampling)
{
    const torch::NoGradGuard no_grad;
    const auto type = model->parameters().front().scalar_type();
    const auto denoised = [&](const at::Tensor& image, double level) {
        const auto sigma = torch::full({image.size(0)}, level, torch::TensorOptions(type).device(image.device()));
        return model->forward(image.to(type), sigma, condition).to(torch::kDouble);
    };
    const auto most_steps = static_cast<double>(std::max<std::size_t>(1, levels.size() - 1));
    auto image = start.to(torch::kDouble);
    for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
        auto level = levels[i];
        const auto next = levels[i + 1];
        if (sampling.churn > 0) {
            const auto raised = level * (1 + std::min(sampling.churn / most_steps, std::sqrt(2.0) - 1));
            const auto added = std::sqrt(raised * raised - level * level);
            image = image + added * grid_noise(image, sampling.seed, i + 1);  // draw 0 is the start
            level = raised;
        }
        const auto slope = (image - denoised(image, level)) / level;
        const auto moved = image + (next - level) * slope;
        image = next > 0 ? image + (next - level) / 2 * (slope + (moved - denoised(moved, next)) / next) : moved;
    }
    return image;
}

at::Tensor generate_images(EdmPreconditioner& model, const at::Tensor& like, const DenoiserCondition& condition,
                           const EdmSampling& sampling)
{
    sampling.validate();
    const auto levels = noise_levels(sampling);
    return follow_noise_levels(model, levels.front() * grid_noise(like, sampling.seed, 0), levels, condition, sampling);
}

}  // namespace meshard
