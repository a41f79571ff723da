// SPDX-License-Identifier: Apache-2.0
#include "models/activation.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include <torch/torch.h>

#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {
namespace {

using torch::Tensor;

struct NamedFunction {
    const char* name;
    Tensor (*function)(const Tensor&);
};

constexpr NamedFunction kFunctions[] = {
    {"cappek_leaky_relu", [](const Tensor& x) { return torch::leaky_relu(x, 0.01); }},   // the reference's spelling
    {"capped_gelu", [](const Tensor& x) { return torch::gelu(x); }},
    {"celu", [](const Tensor& x) { return torch::celu(x, 1.0); }},
    {"elu", [](const Tensor& x) { return torch::elu(x); }},
    {"gelu", [](const Tensor& x) { return torch::gelu(x); }},
    {"hardtanh", [](const Tensor& x) { return torch::hardtanh(x); }},
    {"identity", [](const Tensor& x) { return x; }},
    {"leaky_relu", [](const Tensor& x) { return torch::leaky_relu(x, 0.1); }},
    {"logsigmoid", [](const Tensor& x) { return torch::log_sigmoid(x); }},
    {"relu", [](const Tensor& x) { return torch::relu(x); }},
    {"relu6", [](const Tensor& x) { return torch::hardtanh(x, 0.0, 6.0); }},
    {"selu", [](const Tensor& x) { return torch::selu(x); }},
    {"sigmoid", [](const Tensor& x) { return torch::sigmoid(x); }},
    {"silu", [](const Tensor& x) { return torch::silu(x); }},
    {"sin", [](const Tensor& x) { return torch::sin(x); }},
    {"softplus", [](const Tensor& x) { return torch::softplus(x); }},
    {"softshrink", [](const Tensor& x) { return torch::softshrink(x); }},
    {"squareplus", [](const Tensor& x) { return 0.5 * (x + torch::sqrt(x * x + 4)); }},   // Barron 2021, with b = 4
    {"softsign", [](const Tensor& x) { return x / (x.abs() + 1); }},
    {"tanh", [](const Tensor& x) { return torch::tanh(x); }},
    {"tanhshrink", [](const Tensor& x) { return x - torch::tanh(x); }},
    {"threshold", [](const Tensor& x) { return torch::threshold(x, 1.0, 1.0); }},
};

// Known to the reference, not here: a checkpoint that uses one must not be taken for a spelling mistake.
// `stan` fits a single channel only, so no MLP has it.
constexpr std::array kAbsent = {"stan"};

constexpr double kCap = 1.0;   // of the capped ones

std::string lower_case(std::string_view name)
{
    std::string lower;
    std::transform(name.begin(), name.end(), std::back_inserter(lower), [](unsigned char c) { return std::tolower(c); });
    return lower;
}

}  // namespace

std::vector<std::string> activation_names()
{
    std::vector<std::string> names{"prelu"};
    for (const auto& entry : kFunctions) names.emplace_back(entry.name);
    std::sort(names.begin(), names.end());
    return names;
}

ActivationImpl::ActivationImpl(std::string_view name)
{
    const std::string wanted = lower_case(name);
    if (wanted == "prelu") {
        slope_ = register_parameter("weight", torch::full({1}, 0.25));
        return;
    }
    for (const auto& entry : kFunctions) {
        if (wanted == entry.name) function_ = entry.function;
    }
    if (wanted == "capped_gelu" || wanted == "cappek_leaky_relu") cap_ = register_buffer("cap", torch::tensor(static_cast<float>(kCap)));
    if (function_) return;

    const auto names = activation_names();
    std::string message = "Activation: '" + std::string(name) + "' is ";
    message += std::find(kAbsent.begin(), kAbsent.end(), wanted) != kAbsent.end() ? "not implemented yet." : "not known.";
    if (const auto nearest = nearest_name(wanted, names); !nearest.empty()) message += " Did you mean '" + nearest + "'?";
    message += " There are:";
    for (const auto& known : names) message += " " + known;
    throw InvalidInput(message + ".");
}

bool ActivationImpl::is_gelu() const
{
    const auto gelu = std::find_if(std::begin(kFunctions), std::end(kFunctions), [](const auto& entry) { return std::string_view(entry.name) == "gelu"; });
    return function_ == gelu->function && !cap_.defined();
}

torch::Tensor ActivationImpl::forward(const torch::Tensor& x)
{
    if (!function_) return torch::prelu(x, slope_);
    return cap_.defined() ? torch::minimum(function_(x), cap_.to(x.scalar_type())) : function_(x);
}

}  // namespace meshard
