// SPDX-License-Identifier: Apache-2.0
#include "models/grids/edge_reductions.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>

namespace meshard {
namespace {

using torch::Tensor;

constexpr double kVarianceFloor = 1e-6;  // lower bound of the variance in a standard deviation

bool has_squares(const std::vector<std::string>& reductions)
{
    return std::ranges::any_of(reductions, [](const auto& name) { return name == "var" || name == "std"; });
}

/// Adds the rows of edges by target.
Tensor summed(const Tensor& edges, const Tensor& targets, std::int64_t num_targets)
{
    return torch::zeros({num_targets, edges.size(1)}, edges.options()).index_add(0, targets, edges);
}

}  // namespace

bool has_extremes(const std::vector<std::string>& reductions)
{
    return std::ranges::any_of(reductions, [](const auto& name) { return name == "max" || name == "min"; });
}

Tensor edge_extremes(const Tensor& edges, const Tensor& targets, std::int64_t num_targets)
{
    const torch::NoGradGuard no_grad;
    const auto both = torch::cat({edges.detach(), -edges.detach()}, 1);
    const auto least =
        torch::full({num_targets, both.size(1)}, -std::numeric_limits<double>::infinity(), both.options());
    return at::scatter_reduce(least, 0, targets.unsqueeze(1).expand_as(both), both, "amax");
}

Tensor edge_sums(const std::vector<std::string>& reductions, const Tensor& edges, const Tensor& targets,
                 std::int64_t num_targets, const Tensor& extremes)
{
    std::vector<Tensor> columns{edges};
    if (has_squares(reductions)) columns.push_back(edges.square());
    if (extremes.defined()) {
        const auto attains = torch::cat({edges.detach(), -edges.detach()}, 1)
                                 .eq(extremes.index_select(0, targets))
                                 .to(edges.scalar_type());
        columns.push_back(torch::cat({edges, edges}, 1) * attains);
        columns.push_back(attains);
    }
    columns.push_back(torch::ones({edges.size(0), 1}, edges.options()));
    return summed(torch::cat(columns, 1), targets, num_targets);
}

std::int64_t width_of_edge_sums(const std::vector<std::string>& reductions, std::int64_t channels)
{
    return channels * (1 + (has_squares(reductions) ? 1 : 0) + (has_extremes(reductions) ? 4 : 0)) + 1;
}

Tensor edge_reductions(const std::vector<std::string>& reductions, const Tensor& sums, std::int64_t channels)
{
    std::int64_t next = 0;
    const auto take = [&](std::int64_t width) {
        next += width;
        return sums.narrow(-1, next - width, width);
    };
    const auto sum = take(channels);
    const auto squares = has_squares(reductions) ? take(channels) : Tensor();
    Tensor ends, num_ends;
    if (has_extremes(reductions)) {
        ends = take(2 * channels);
        num_ends = take(2 * channels).clamp_min(1);
        ends = ends / num_ends;
    }
    const auto count = take(1).clamp_min(1);
    const auto mean = sum / count;
    std::vector<Tensor> results;
    for (const auto& name : reductions) {
        if (name == "sum") results.push_back(sum);
        if (name == "mean") results.push_back(mean);
        if (name == "max") results.push_back(ends.narrow(-1, 0, channels));
        if (name == "min") results.push_back(ends.narrow(-1, channels, channels));
        if (name == "var" || name == "std") {
            const auto variance = squares / count - mean.square();
            // Rounding makes a difference of large squares negative.
            results.push_back(name == "var" ? variance : torch::sqrt(variance.clamp_min(0) + kVarianceFloor));
        }
    }
    return results.size() == 1 ? results[0] : torch::cat(results, -1);
}

}  // namespace meshard
