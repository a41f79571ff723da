// SPDX-License-Identifier: Apache-2.0
#include "models/diffusion/edm_sampling.h"

#include "models/layers/option_checks.h"
#include "partition/random_numbers.h"
#include "sharding/ranks/parallel_for.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

namespace meshard {
namespace {

/// A uniform number in (0, 1].
double above_zero(std::uint64_t bits)
{
    return (static_cast<double>(bits >> 11) + 1) * 0x1p-53;
}

std::uint64_t mixed(std::uint64_t key, std::uint64_t number)
{
    return RandomNumbers(key ^ (number + 1) * 0x9e3779b97f4a7c15u).next();
}

}  // namespace

double normal_number(std::uint64_t seed)
{
    RandomNumbers random(seed);
    const auto radius = std::sqrt(-2 * std::log(above_zero(random.next())));
    return radius * std::cos(2 * std::numbers::pi * above_zero(random.next()));
}

at::Tensor grid_noise(const at::Tensor& like, std::uint64_t seed, std::uint64_t draw)
{
    const auto& local = local_of(like);
    // For each dimension the indices in the whole of this rank's entries.
    std::array<std::vector<std::int64_t>, 4> entries;
    for (int dim = 0; dim < 4; ++dim) {
        std::int64_t first = 0;
        if (is_sharded(like)) {
            const auto& spec = *spec_of(like);
            if (const auto axis = spec.axis_of_dim(dim); axis >= 0)
                first = spec.axes[axis].offset(spec.device_mesh->coordinate(axis));
        }
        for (std::int64_t i = 0; i < local.size(dim); ++i) entries[dim].push_back(first + i);
    }
    auto noise = at::empty(local.sizes(), at::kDouble);
    auto* numbers = noise.data_ptr<double>();
    const auto width = local.size(3);
    const auto key = mixed(mixed(seed, 0), draw);
    at::parallel_for(0, width > 0 ? noise.numel() / width : 0, 16, [&](std::int64_t begin, std::int64_t end) {
        for (auto line = begin; line < end; ++line) {
            const auto row = line % local.size(2), channel = line / local.size(2) % local.size(1),
                       sample = line / local.size(2) / local.size(1);
            const auto of_line = mixed(mixed(mixed(key, static_cast<std::uint64_t>(entries[0][sample])),
                                             static_cast<std::uint64_t>(entries[1][channel])),
                                       static_cast<std::uint64_t>(entries[2][row]));
            for (std::int64_t column = 0; column < width; ++column)
                numbers[line * width + column] =
                    normal_number(mixed(of_line, static_cast<std::uint64_t>(entries[3][column])));
        }
    });
    const auto there = noise.to(local.device());
    return is_sharded(like) ? wrap(there, spec_of(like)) : there;
}

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
