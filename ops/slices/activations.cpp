// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/activations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

namespace meshard {
namespace {

using at::Tensor;
using Parameter = ActivationFunction::Parameter;

constexpr double kLeakySlope = 0.1, kCappedSlope = 0.01, kSoftplusEnd = 20, kShrink = 0.5;
constexpr double kSeluAlpha = 1.6732632423543772848170429916717, kSeluScale = 1.0507009873554804934193349852946;

Tensor elu_gradient(const Tensor& g, const Tensor& x, double alpha, double scale)
{
    return at::elu_backward(g, alpha, scale, 1, false, x);
}

/// Gradient of min(value, cap): one below the cap, one half if both are equal.
Tensor capped_gradient(const Tensor& g, const Tensor& value, const Tensor& cap)
{
    return g * (value.lt(cap).to(g.scalar_type()) + value.le(cap).to(g.scalar_type())) * 0.5;
}

const std::array kFunctions{
    ActivationFunction{
        "capped_gelu",
        [](const Tensor& x, const Tensor& cap) { return at::minimum(at::gelu(x), cap.to(x.scalar_type())); },
        [](const Tensor& g, const Tensor& x, const Tensor& cap) {
            return at::gelu_backward(capped_gradient(g, at::gelu(x), cap), x);
        },
        Parameter::Cap},
    ActivationFunction{"cappek_leaky_relu",  // the reference's spelling
                       [](const Tensor& x, const Tensor& cap) {
                           return at::minimum(at::leaky_relu(x, kCappedSlope), cap.to(x.scalar_type()));
                       },
                       [](const Tensor& g, const Tensor& x, const Tensor& cap) {
                           return at::leaky_relu_backward(capped_gradient(g, at::leaky_relu(x, kCappedSlope), cap), x,
                                                          kCappedSlope, false);
                       },
                       Parameter::Cap},
    ActivationFunction{"celu", [](const Tensor& x, const Tensor&) { return at::celu(x, 1.0); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return elu_gradient(g, x, 1, 1); }},
    ActivationFunction{"elu", [](const Tensor& x, const Tensor&) { return at::elu(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return elu_gradient(g, x, 1, 1); }},
    ActivationFunction{"gelu", [](const Tensor& x, const Tensor&) { return at::gelu(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return at::gelu_backward(g, x); }},
    ActivationFunction{
        "hardtanh", [](const Tensor& x, const Tensor&) { return at::hardtanh(x); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::hardtanh_backward(g, x, -1, 1); }},
    ActivationFunction{"identity", [](const Tensor& x, const Tensor&) { return x; },
                       [](const Tensor& g, const Tensor&, const Tensor&) { return g; }},
    ActivationFunction{"leaky_relu", [](const Tensor& x, const Tensor&) { return at::leaky_relu(x, kLeakySlope); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) {
                           return at::leaky_relu_backward(g, x, kLeakySlope, false);
                       }},
    ActivationFunction{"logsigmoid", [](const Tensor& x, const Tensor&) { return at::log_sigmoid(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return g * at::sigmoid(-x); }},
    ActivationFunction{
        "prelu", [](const Tensor& x, const Tensor& slope) { return at::prelu(x, slope); },
        [](const Tensor& g, const Tensor& x, const Tensor& slope) { return at::where(x.gt(0), g, g * slope); },
        Parameter::Slope},
    ActivationFunction{"relu", [](const Tensor& x, const Tensor&) { return at::relu(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return at::threshold_backward(g, x, 0); }},
    ActivationFunction{
        "relu6", [](const Tensor& x, const Tensor&) { return at::hardtanh(x, 0, 6); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::hardtanh_backward(g, x, 0, 6); }},
    ActivationFunction{
        "selu", [](const Tensor& x, const Tensor&) { return at::selu(x); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return elu_gradient(g, x, kSeluAlpha, kSeluScale); }},
    ActivationFunction{
        "sigmoid", [](const Tensor& x, const Tensor&) { return at::sigmoid(x); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::sigmoid_backward(g, at::sigmoid(x)); }},
    ActivationFunction{"silu", [](const Tensor& x, const Tensor&) { return at::silu(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return at::silu_backward(g, x); }},
    ActivationFunction{"sin", [](const Tensor& x, const Tensor&) { return at::sin(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return g * at::cos(x); }},
    ActivationFunction{
        "softplus", [](const Tensor& x, const Tensor&) { return at::softplus(x, 1, kSoftplusEnd); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::softplus_backward(g, x, 1, kSoftplusEnd); }},
    ActivationFunction{
        "softshrink", [](const Tensor& x, const Tensor&) { return at::softshrink(x, kShrink); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::softshrink_backward(g, x, kShrink); }},
    ActivationFunction{"softsign", [](const Tensor& x, const Tensor&) { return x / (x.abs() + 1); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return g / (x.abs() + 1).square(); }},
    ActivationFunction{
        "squareplus",
        [](const Tensor& x, const Tensor&) { return 0.5 * (x + at::sqrt(x * x + 4)); },  // Barron 2021, with b = 4
        [](const Tensor& g, const Tensor& x, const Tensor&) { return g * (0.5 + 0.5 * x / at::sqrt(x * x + 4)); }},
    ActivationFunction{
        "tanh", [](const Tensor& x, const Tensor&) { return at::tanh(x); },
        [](const Tensor& g, const Tensor& x, const Tensor&) { return at::tanh_backward(g, at::tanh(x)); }},
    ActivationFunction{"tanhshrink", [](const Tensor& x, const Tensor&) { return x - at::tanh(x); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return g * at::tanh(x).square(); }},
    ActivationFunction{"threshold", [](const Tensor& x, const Tensor&) { return at::threshold(x, 1.0, 1.0); },
                       [](const Tensor& g, const Tensor& x, const Tensor&) { return at::threshold_backward(g, x, 1); }},
};

}  // namespace

std::span<const ActivationFunction> activation_functions()
{
    return kFunctions;
}

const ActivationFunction* find_activation(std::string_view name)
{
    const auto found =
        std::find_if(kFunctions.begin(), kFunctions.end(), [&](const auto& function) { return function.name == name; });
    return found == kFunctions.end() ? nullptr : &*found;
}

}  // namespace meshard
