// SPDX-License-Identifier: Apache-2.0
#include "sharding/parameters/fused_adamw.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace meshard {
namespace {

using State = torch::optim::AdamWParamState;

/// Arguments of one call of the fused operator: tensors of one device and type, with the same number of steps.
struct Lists {
    std::vector<at::Tensor> parameters, gradients, means, squares;
};

State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter)
{
    auto& found = optimizer.state()[parameter.unsafeGetTensorImpl()];
    if (!found) {
        auto state = std::make_unique<State>();
        state->step(0);
        state->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        state->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        found = std::move(state);
    }
    return static_cast<State&>(*found);
}

}  // namespace

at::Tensor FusedAdamW::step(LossClosure closure)
{
    const auto groups = param_groups();
    const bool has_amsgrad = std::ranges::any_of(groups, [](const auto& group) {
        return static_cast<const torch::optim::AdamWOptions&>(group.options()).amsgrad();
    });
    if (has_amsgrad) return AdamW::step(std::move(closure));
    at::Tensor loss;
    if (closure) {
        const at::AutoGradMode recording(true);
        loss = closure();
    }
    const at::NoGradGuard no_grad;
    for (const auto& group : groups) {
        const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
        std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType, std::int64_t>, Lists> calls;
        for (const auto& parameter : group.params()) {
            if (!parameter.grad().defined() || parameter.numel() == 0) continue;
            auto& state = state_of(*this, parameter);
            state.step(state.step() + 1);
            auto& lists =
                calls[{parameter.device().type(), parameter.device().index(), parameter.scalar_type(), state.step()}];
            lists.parameters.push_back(parameter);
            lists.gradients.push_back(parameter.grad());
            lists.means.push_back(state.exp_avg());
            lists.squares.push_back(state.exp_avg_sq());
        }
        for (const auto& [kind, lists] : calls) {
            const auto step =
                at::full({}, std::get<3>(kind), lists.parameters[0].options().dtype(at::kFloat).requires_grad(false));
            const std::vector<at::Tensor> steps(lists.parameters.size(), step);
            at::_fused_adamw_(lists.parameters, lists.gradients, lists.means, lists.squares, {}, steps, options.lr(),
                              std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
                              options.eps(), /*amsgrad=*/false, /*maximize=*/false, {}, {});
        }
    }
    return loss;
}

std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<at::Tensor> parameters,
                                                const torch::optim::AdamWOptions& options)
{
    return make_adamw(std::vector{torch::optim::OptimizerParamGroup(
                          std::move(parameters), std::make_unique<torch::optim::AdamWOptions>(options))},
                      options);
}

std::unique_ptr<torch::optim::AdamW> make_adamw(std::vector<torch::optim::OptimizerParamGroup> groups,
                                                const torch::optim::AdamWOptions& defaults)
{
    const bool on_cpu = std::ranges::all_of(groups, [](const auto& group) {
        return std::all_of(group.params().begin(), group.params().end(),
                           [](const auto& parameter) { return parameter.is_cpu(); });
    });
    if (on_cpu) return std::make_unique<torch::optim::AdamW>(groups, defaults);
    return std::make_unique<FusedAdamW>(groups, defaults);
}

}  // namespace meshard
