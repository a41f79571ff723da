// SPDX-License-Identifier: Apache-2.0
#include "models/layers/activation.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/nearest_name.h"

#include <algorithm>
#include <array>

namespace meshard {
namespace {

// Names of the reference that are not implemented; their error does not suggest a spelling mistake. `stan` works with a
// single channel only, so that no MLP uses it.
constexpr std::array kAbsent = {"stan"};

constexpr double kCap = 1.0;            // upper bound of the capped activations
constexpr double kInitialSlope = 0.25;  // initial slope of prelu

}  // namespace

std::vector<std::string> activation_names()
{
    std::vector<std::string> names;
    for (const auto& function : activation_functions()) names.emplace_back(function.name);
    return names;
}

ActivationImpl::ActivationImpl(std::string_view name)
{
    const std::string wanted = lower_case(name);
    function_ = find_activation(wanted);
    if (function_) {
        using Parameter = ActivationFunction::Parameter;
        if (function_->parameter == Parameter::Slope)
            parameter_ = register_parameter("weight", torch::full({1}, kInitialSlope));
        if (function_->parameter == Parameter::Cap)
            parameter_ = register_buffer("cap", torch::tensor(static_cast<float>(kCap)));
        return;
    }

    const auto names = activation_names();
    std::string message = "Activation: '" + std::string(name) + "' is ";
    message += contains(kAbsent, wanted) ? "not implemented yet." : "not known.";
    message += suggestion(wanted, names) + " There are:";
    for (const auto& known : names) message += " " + known;
    throw InvalidInput("{}.", message);
}

torch::Tensor ActivationImpl::forward(const torch::Tensor& x)
{
    return function_->value(x, parameter_);
}

}  // namespace meshard
