// SPDX-License-Identifier: Apache-2.0
#include "apps/training/step_graphs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace meshard {
namespace {

/// Shapes, strides and types.
std::string text_of(const StepGraphs::Tensors& tensors)
{
    std::ostringstream text;
    for (const auto& tensor : tensors) {
        if (tensor.defined())
            text << '|' << tensor.sizes() << tensor.strides() << tensor.scalar_type();
        else
            text << "|none";
    }
    return text.str();
}

std::string first_line(const std::string& text)
{
    return text.substr(0, text.find('\n'));
}

}  // namespace

std::size_t StepGraphs::num_graphs() const
{
    return static_cast<std::size_t>(std::count_if(kinds_.begin(), kinds_.end(), [](const auto& item) { return item.second.graph.has_value(); }));
}

at::Tensor StepGraphs::run(const std::string& key, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& step)
{
    if (why_not_) return step(inputs);
    auto& kind = kinds_[key + text_of(inputs)];
    const bool is_recorded = kind.graph || (kind.num_runs >= kWarmUps && num_graphs() < kMostGraphs && record(kind, inputs, step));
    if (is_recorded) return replay(kind, inputs);
    ++kind.num_runs;
    return step(inputs);
}

/// False if it cannot be.
bool StepGraphs::record(Kind& kind, const Tensors& inputs, const std::function<at::Tensor(const Tensors&)>& step)
{
    // Tensors of the graph's own, into which those of each step are copied.
    for (const auto& input : inputs) kind.inputs.push_back(input.defined() ? input.detach().clone() : at::Tensor());
    try {
        DeviceGraph graph(type_);
        graph.record([&] { kind.loss = step(kind.inputs).detach(); });
        for (const auto& parameter : parameters_) kind.gradients.push_back(parameter.grad());
        kind.graph.emplace(std::move(graph));
        return true;
    } catch (const std::exception& error) {
        why_not_ = first_line(error.what());
        kinds_.clear();
        for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
        return false;
    }
}

at::Tensor StepGraphs::replay(Kind& kind, const Tensors& inputs)
{
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].defined()) kind.inputs[i].copy_(inputs[i], /*non_blocking=*/true);
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = kind.gradients[i];
    kind.graph->run();
    ++num_replays_;
    return kind.loss;
}

}  // namespace meshard
