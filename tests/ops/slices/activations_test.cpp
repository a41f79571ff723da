// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_functions.h"
#include "ops/slices/activations.h"
#include "tests/support/expect_tensors.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <string>

namespace meshard {
namespace {

/// Numbers on both sides of every bend, and far away; bends themselves, too.
at::Tensor sample_numbers(at::ScalarType type)
{
    return torch::cat({torch::linspace(-30, 30, 1001, at::kDouble), torch::linspace(-3, 3, 601, at::kDouble),
                       torch::tensor({-1.0, -0.5, 0.0, 0.5, 1.0, 6.0, 20.0, -0.0}, at::kDouble)})
        .to(type);
}

at::Tensor parameter_of(const ActivationFunction& function, at::ScalarType type)
{
    return function.parameter == ActivationFunction::Parameter::None
               ? at::Tensor()
               : torch::full({1}, function.parameter == ActivationFunction::Parameter::Cap ? 1.0 : -0.3, type);
}

TEST(Activations, AreFoundByTheirNamesInOrder)
{
    const auto functions = activation_functions();

    EXPECT_EQ(functions.size(), 23U);
    EXPECT_TRUE(std::is_sorted(functions.begin(), functions.end(),
                               [](const auto& a, const auto& b) { return a.name < b.name; }));
    for (const auto& function : functions) EXPECT_EQ(find_activation(function.name), &function);
    EXPECT_EQ(find_activation("gelo"), nullptr);
}

TEST(Activations, HaveTheSlopesThatLibTorchDerives)
{
    for (const auto& function : activation_functions()) {
        const auto x = sample_numbers(at::kDouble).requires_grad_(), parameter = parameter_of(function, at::kDouble),
                   g = torch::randn_like(x).detach();
        const auto expected = torch::autograd::grad({function.value(x, parameter)}, {x}, {g})[0];

        EXPECT_TRUE(tensors_near(function.gradient(g, x.detach(), parameter), expected, 1e-14)) << function.name;
    }
}

template <class T>
void expect_tiles_as_tensors(const ActivationFunction& function)
{
    const auto type = c10::CppTypeToScalarType<T>::value;
    at::Tensor x = sample_numbers(type).requires_grad_(), parameter = parameter_of(function, type);
    const bool is_learned = function.parameter == ActivationFunction::Parameter::Slope;
    if (is_learned) parameter.requires_grad_();
    const at::Tensor g = torch::cos(sample_numbers(type));
    const at::Tensor expected = function.value(x, parameter);
    expected.backward(g);
    const auto* number = parameter.defined() ? parameter.const_data_ptr<T>() : nullptr;
    at::Tensor y = torch::zeros_like(g), again = torch::zeros_like(g), gradient = g.clone();
    T of_parameter = 2;

    activate(&function, number, y.data_ptr<T>(), x.const_data_ptr<T>(), x.numel());
    activate_backward(&function, number, gradient.data_ptr<T>(), again.data_ptr<T>(), x.const_data_ptr<T>(), x.numel(),
                      &of_parameter);

    const double tolerance = std::is_same_v<T, double> ? 1e-14 : 1e-6;
    EXPECT_TRUE(tensors_near(y, expected.detach(), tolerance)) << function.name;
    EXPECT_TRUE(torch::equal(again, y)) << function.name;
    EXPECT_TRUE(tensors_near(gradient, x.grad(), tolerance)) << function.name;
    EXPECT_NEAR(of_parameter, 2 + (is_learned ? parameter.grad().item<double>() : 0), 1e-2 * std::sqrt(tolerance))
        << function.name;  // a sum of a thousand numbers
}

TEST(Activations, OfTilesAreThoseOfTensors)
{
    for (const auto& function : activation_functions()) {
        expect_tiles_as_tensors<float>(function);
        expect_tiles_as_tensors<double>(function);
    }
}

}  // namespace
}  // namespace meshard
