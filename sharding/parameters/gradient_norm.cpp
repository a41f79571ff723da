// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/gradient_norm.h"

#include "partition/error.h"
#include "sharding/tensor/redistribute.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <cmath>

namespace meshard {
namespace {

/// Sum of squares of each tensor. The values are read from the devices in one transfer.
std::vector<double> sums_of_squares(const std::vector<at::Tensor>& tensors)
{
    std::vector<at::Tensor> sums;
    for (const auto& tensor : tensors) sums.push_back(tensor.to(at::kDouble).square().sum());
    if (sums.empty()) return {};
    const auto all = at::stack(sums).cpu();
    return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

/// Sums of squares on one device mesh: `sums[mask]` adds the gradients that are sharded on the axes whose bits are set
/// in `mask`.
struct MeshSums {
    std::shared_ptr<const DeviceMesh> mesh;
    std::vector<double> sums;
    std::vector<char> present;

    double total()
    {
        for (std::int64_t axis = 0; axis < mesh->num_axes(); ++axis) {
            std::vector<std::size_t> masks;
            for (std::size_t mask = 0; mask < sums.size(); ++mask) {
                if (present[mask] && (mask >> axis & 1)) masks.push_back(mask);
            }
            if (masks.empty()) continue;
            auto values = at::empty({static_cast<std::int64_t>(masks.size())}, at::kDouble);
            auto* numbers = values.mutable_data_ptr<double>();
            for (std::size_t i = 0; i < masks.size(); ++i) numbers[i] = sums[masks[i]];
            mesh->group(axis).all_reduce(values);
            for (std::size_t i = 0; i < masks.size(); ++i) sums[masks[i]] = numbers[i];
        }
        double sum = 0;
        for (const auto value : sums) sum += value;
        return sum;
    }
};

void check(double max_norm)
{
    if (!(max_norm > 0)) throw InvalidInput("clip_grad_norm: the largest norm is " + std::to_string(max_norm) + "; give a positive number.");
}

void scale(const std::vector<at::Tensor>& gradients, double norm, double max_norm)
{
    if (norm <= max_norm) return;
    for (auto gradient : gradients) gradient.mul_(max_norm / (norm + 1e-6));
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters)
{
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
        if (parameter.grad().defined() && parameter.numel() > 0) gradients.push_back(parameter.grad());
    }
    return gradients;
}

}  // namespace

double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm)
{
    check(max_norm);
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
        if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
    reduce_partials(gradients);

    double sum = 0;
    std::vector<MeshSums> meshes;
    std::vector<at::Tensor> parts;
    for (const auto& gradient : gradients) parts.push_back(local_of(gradient));
    const auto all_squares = sums_of_squares(parts);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const auto& gradient = gradients[i];
        const auto squares = all_squares[i];
        if (!is_sharded(gradient)) {
            sum += squares;
            continue;
        }
        const auto& spec = *spec_of(gradient);
        std::size_t mask = 0;
        for (std::size_t a = 0; a < spec.axes.size(); ++a) mask |= static_cast<std::size_t>(spec.axes[a].is_shard()) << a;
        auto found = meshes.begin();
        while (found != meshes.end() && found->mesh != spec.device_mesh) ++found;
        if (found == meshes.end()) {
            const auto size = std::size_t{1} << spec.axes.size();
            meshes.push_back({spec.device_mesh, std::vector<double>(size), std::vector<char>(size)});
            found = meshes.end() - 1;
        }
        found->sums[mask] += squares;
        found->present[mask] = true;
    }
    for (auto& mesh : meshes) sum += mesh.total();
    const auto norm = std::sqrt(sum);
    scale(gradients, norm, max_norm);
    return norm;
}

double clip_grad_norm(const FullyShardedModule& module, double max_norm)
{
    check(max_norm);
    const at::NoGradGuard no_grad;
    const auto& parameters = module.local_parameters();
    const auto norm = gradient_norm(parameters, &module.group()).item<double>();
    scale(gradients_of(parameters), norm, max_norm);
    return norm;
}

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters, const RankGroup* parts_of)
{
    const at::NoGradGuard no_grad;
    const auto gradients = gradients_of(parameters);
    const auto options = (parameters.empty() ? at::TensorOptions() : parameters[0].options()).dtype(at::kDouble).requires_grad(false);
    auto sum = gradients.empty() ? at::zeros({1}, options) : at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).square().sum().view({1});
    if (parts_of) parts_of->all_reduce(sum);
    return sum.sqrt().squeeze(0);
}

void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& norm, double max_norm)
{
    check(max_norm);
    const at::NoGradGuard no_grad;
    const auto factor = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
    for (auto& gradient : gradients_of(parameters)) gradient.mul_(factor);
}

}  // namespace meshard
