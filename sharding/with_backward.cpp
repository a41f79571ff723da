// SPDX-License-Identifier: Apache-2.0
#include "sharding/with_backward.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace meshard {
namespace {

struct FunctionBackward : torch::autograd::Node {
    std::function<at::Tensor(const at::Tensor&)> backward;
    std::string label;

    torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override
    {
        auto result = gradients[0].defined() ? backward(gradients[0]) : at::Tensor();
        if (num_outputs() == 0) return {};
        return {std::move(result)};
    }
    std::string name() const override { return label; }
};

}  // namespace

at::Tensor with_backward(at::Tensor output, const at::Tensor& input, const char* label, std::function<at::Tensor(const at::Tensor&)> backward,
                         bool record)
{
    const bool takes_gradient = input.defined() ? input.requires_grad() : record;
    if (!at::GradMode::is_enabled() || !takes_gradient) return output;
    const auto node = std::shared_ptr<FunctionBackward>(new FunctionBackward, torch::autograd::deleteNode);
    node->backward = std::move(backward);
    node->label = label;
    if (input.defined()) node->set_next_edges(torch::autograd::collect_next_edges(input));
    torch::autograd::set_history(output, node);
    return output;
}

}  // namespace meshard
