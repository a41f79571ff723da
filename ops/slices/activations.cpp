// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/activations.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

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

constexpr ActivationFunction kFunctions[] = {
    {"capped_gelu", [](auto& x, auto& cap) { return at::minimum(at::gelu(x), cap.to(x.scalar_type())); },
     [](auto& g, auto& x, auto& cap) { return at::gelu_backward(capped_gradient(g, at::gelu(x), cap), x); },
     Parameter::Cap},
    {"cappek_leaky_relu",  // the reference's spelling
     [](auto& x, auto& cap) { return at::minimum(at::leaky_relu(x, kCappedSlope), cap.to(x.scalar_type())); },
     [](auto& g, auto& x, auto& cap) {
         return at::leaky_relu_backward(capped_gradient(g, at::leaky_relu(x, kCappedSlope), cap), x, kCappedSlope,
                                        false);
     },
     Parameter::Cap},
    {"celu", [](auto& x, auto&) { return at::celu(x, 1.0); },
     [](auto& g, auto& x, auto&) { return elu_gradient(g, x, 1, 1); }},
    {"elu", [](auto& x, auto&) { return at::elu(x); },
     [](auto& g, auto& x, auto&) { return elu_gradient(g, x, 1, 1); }},
    {"gelu", [](auto& x, auto&) { return at::gelu(x); },
     [](auto& g, auto& x, auto&) { return at::gelu_backward(g, x); }},
    {"hardtanh", [](auto& x, auto&) { return at::hardtanh(x); },
     [](auto& g, auto& x, auto&) { return at::hardtanh_backward(g, x, -1, 1); }},
    {"identity", [](auto& x, auto&) { return x; }, [](auto& g, auto&, auto&) { return g; }},
    {"leaky_relu", [](auto& x, auto&) { return at::leaky_relu(x, kLeakySlope); },
     [](auto& g, auto& x, auto&) { return at::leaky_relu_backward(g, x, kLeakySlope, false); }},
    {"logsigmoid", [](auto& x, auto&) { return at::log_sigmoid(x); },
     [](auto& g, auto& x, auto&) { return g * at::sigmoid(-x); }},
    {"prelu", [](auto& x, auto& slope) { return at::prelu(x, slope); },
     [](auto& g, auto& x, auto& slope) { return at::where(x.gt(0), g, g * slope); }, Parameter::Slope},
    {"relu", [](auto& x, auto&) { return at::relu(x); },
     [](auto& g, auto& x, auto&) { return at::threshold_backward(g, x, 0); }},
    {"relu6", [](auto& x, auto&) { return at::hardtanh(x, 0, 6); },
     [](auto& g, auto& x, auto&) { return at::hardtanh_backward(g, x, 0, 6); }},
    {"selu", [](auto& x, auto&) { return at::selu(x); },
     [](auto& g, auto& x, auto&) { return elu_gradient(g, x, kSeluAlpha, kSeluScale); }},
    {"sigmoid", [](auto& x, auto&) { return at::sigmoid(x); },
     [](auto& g, auto& x, auto&) { return at::sigmoid_backward(g, at::sigmoid(x)); }},
    {"silu", [](auto& x, auto&) { return at::silu(x); },
     [](auto& g, auto& x, auto&) { return at::silu_backward(g, x); }},
    {"sin", [](auto& x, auto&) { return at::sin(x); }, [](auto& g, auto& x, auto&) { return g * at::cos(x); }},
    {"softplus", [](auto& x, auto&) { return at::softplus(x, 1, kSoftplusEnd); },
     [](auto& g, auto& x, auto&) { return at::softplus_backward(g, x, 1, kSoftplusEnd); }},
    {"softshrink", [](auto& x, auto&) { return at::softshrink(x, kShrink); },
     [](auto& g, auto& x, auto&) { return at::softshrink_backward(g, x, kShrink); }},
    {"softsign", [](auto& x, auto&) { return x / (x.abs() + 1); },
     [](auto& g, auto& x, auto&) { return g / (x.abs() + 1).square(); }},
    {"squareplus", [](auto& x, auto&) { return 0.5 * (x + at::sqrt(x * x + 4)); },  // Barron 2021, with b = 4
     [](auto& g, auto& x, auto&) { return g * (0.5 + 0.5 * x / at::sqrt(x * x + 4)); }},
    {"tanh", [](auto& x, auto&) { return at::tanh(x); },
     [](auto& g, auto& x, auto&) { return at::tanh_backward(g, at::tanh(x)); }},
    {"tanhshrink", [](auto& x, auto&) { return x - at::tanh(x); },
     [](auto& g, auto& x, auto&) { return g * at::tanh(x).square(); }},
    {"threshold", [](auto& x, auto&) { return at::threshold(x, 1.0, 1.0); },
     [](auto& g, auto& x, auto&) { return at::threshold_backward(g, x, 1); }},
};

}  // namespace

std::span<const ActivationFunction> activation_functions()
{
    return kFunctions;
}

const ActivationFunction* find_activation(std::string_view name)
{
    const auto found = std::ranges::find(kFunctions, name, &ActivationFunction::name);
    return found == std::end(kFunctions) ? nullptr : found;
}

}  // namespace meshard
