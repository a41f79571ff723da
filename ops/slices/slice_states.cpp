// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/slice_states.h"

#include "ops/cuda/tile_kernels.h"
#include "ops/rows/on_gpu.h"
#include "ops/rules/rank_parts.h"
#include "ops/slices/slice_layout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace meshard {
namespace {

bool has_slice_kernels(const at::Tensor& sums)
{
    return !sums.is_cpu() && has_kernels(sums.device()) && sums.scalar_type() == at::kFloat;
}

SliceTotals totals(const at::Tensor& sums, const at::Tensor& tokens, double epsilon)
{
    return {sums.const_data_ptr<float>(), tokens.data_ptr<float>(), sums.numel() / sums.size(3), tokens.size(3),
            static_cast<float>(epsilon)};
}

}  // namespace

SliceStates::SliceStates(const at::Tensor& sums, at::ScalarType type, double epsilon, const AttendFunction& attend,
                         const std::vector<at::Tensor>& weights, SpecPtr rows, bool record)
    : rows_(std::move(rows)), type_(type), epsilon_(epsilon)
{
    auto buffer = sums.to(sum_type(type));
    sum_over_rows(buffer, rows_);
    sums_ = buffer;
    tokens_ = tokens_of_sums();

    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::AutoGradMode recording(record);
    tokens_.set_requires_grad(record);
    for (const auto& weight : weights)
        weights_.push_back(weight.detach().set_requires_grad(record && weight.requires_grad()));
    recorded_ = attend(tokens_, weights_);
    states_ = recorded_.detach().contiguous();
}

at::Tensor SliceStates::tokens_of_sums() const
{
    const auto head_dim = sums_.size(3) - 1;
    if (has_slice_kernels(sums_)) {
        auto shape = sums_.sizes().vec();
        shape[3] = head_dim;
        const auto tokens = at::empty(shape, sums_.options());
        on_gpu(sums_, [&](const auto& executor) { find_slice_means(executor, totals(sums_, tokens, epsilon_)); });
        return tokens;
    }
    return sums_.narrow(3, 0, head_dim).div(sums_.narrow(3, head_dim, 1) + epsilon_).to(type_);
}

at::Tensor SliceStates::sums_gradient(const at::Tensor& tokens_gradient) const
{
    const auto head_dim = sums_.size(3) - 1;
    if (has_slice_kernels(sums_)) {
        const auto given = tokens_gradient.contiguous();
        const auto gradient = at::empty_like(sums_);
        on_gpu(sums_, [&](const auto& executor) {
            slice_means_backward(executor, totals(sums_, tokens_, epsilon_), given.const_data_ptr<float>(),
                                 gradient.mutable_data_ptr<float>());
        });
        return gradient;
    }
    const auto features = tokens_gradient.to(sums_.scalar_type()).div(sums_.narrow(3, head_dim, 1) + epsilon_);
    return at::cat({features, features.mul(tokens_.detach()).sum(-1, true).neg()}, -1).to(type_).contiguous();
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
    gradients.sums = sums_gradient(found[0].defined() ? found[0] : at::zeros_like(tokens_));
    std::size_t next = 1;
    for (const auto& weight : weights_)
        gradients.weights.push_back(weight.requires_grad() ? found[next++] : at::Tensor());
    return gradients;
}

}  // namespace meshard
