// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/gradient_norm.h"

#include "partition/error.h"

#include <ATen/ATen.h>

#include <string>

namespace meshard {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters)
{
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) {
        if (parameter.grad().defined() && parameter.numel() > 0) gradients.push_back(parameter.grad());
    }
    return gradients;
}

}  // namespace

at::Tensor gradient_norm(const std::vector<at::Tensor>& parameters, const RankGroup* parts_of)
{
    const at::NoGradGuard no_grad;
    auto gradients = gradients_of(parameters);
    for (auto& gradient : gradients)
        if (gradient.is_complex()) gradient = at::view_as_real(gradient.resolve_conj());
    const auto options =
        (parameters.empty() ? at::TensorOptions() : parameters[0].options()).dtype(at::kDouble).requires_grad(false);
    auto sum = gradients.empty() ? at::zeros({1}, options)
                                 : at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).square().sum().view({1});
    if (parts_of) parts_of->all_reduce(sum);
    return sum.sqrt().squeeze(0);
}

void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& norm, double max_norm)
{
    if (!(max_norm > 0))
        throw InvalidInput("scale_to_norm: the largest norm is {}; give a positive number.", std::to_string(max_norm));
    const at::NoGradGuard no_grad;
    const auto factor = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
    for (auto& gradient : gradients_of(parameters)) gradient.mul_(factor);
}

}  // namespace meshard
