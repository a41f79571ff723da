// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_states.h"

#include "ops/rules/rank_parts.h"
#include "ops/slices/slice_layout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {

SliceStates::SliceStates(const at::Tensor& sums, at::ScalarType type, double epsilon, const AttendFunction& attend,
                         const std::vector<at::Tensor>& weights, SpecPtr rows, bool record)
    : rows_(std::move(rows)), type_(type)
{
    auto buffer = sums.to(sum_type(type));
    sum_over_rows(buffer, rows_);
    sums_ = buffer;
    const auto head_dim = buffer.size(3) - 1;
    norm_ = buffer.narrow(3, head_dim, 1) + epsilon;
    tokens_ = buffer.narrow(3, 0, head_dim).div(norm_).to(type);

    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::AutoGradMode recording(record);
    tokens_.set_requires_grad(record);
    for (const auto& weight : weights)
        weights_.push_back(weight.detach().set_requires_grad(record && weight.requires_grad()));
    recorded_ = attend(tokens_, weights_);
    states_ = recorded_.detach().contiguous();
}

at::Tensor SliceStates::sums() const
{
    return sums_.to(type_);
}

SliceStates::Gradients SliceStates::backward(const at::Tensor& states_gradient) const
{
    auto buffer = states_gradient.to(sum_type(type_)).contiguous();
    sum_over_rows(buffer, rows_);

    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    torch::autograd::variable_list wanted{tokens_};
    for (const auto& weight : weights_) {
        if (weight.requires_grad()) wanted.push_back(weight);
    }
    const auto found = torch::autograd::grad({recorded_}, wanted, {buffer.to(type_)}, /*retain_graph=*/true,
                                             /*create_graph=*/false, /*allow_unused=*/true);

    Gradients gradients;
    gradients.states = buffer.to(type_);
    const auto tokens_gradient = (found[0].defined() ? found[0] : at::zeros_like(tokens_)).to(norm_.scalar_type());
    const auto features = tokens_gradient.div(norm_);
    gradients.sums = at::cat({features, features.mul(tokens_.detach()).sum(-1, true).neg()}, -1).to(type_).contiguous();
    std::size_t next = 1;
    for (const auto& weight : weights_)
        gradients.weights.push_back(weight.requires_grad() ? found[next++] : at::Tensor());
    return gradients;
}

}  // namespace meshard
