// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace meshard {

/// An element-wise activation f(x), or f(x, p) with a parameter, computed by LibTorch's operators on plain or sharded
/// tensors.
struct ActivationFunction {
    enum class Parameter : std::uint8_t {
        None,
        Cap,   ///< a constant: upper bound of the values
        Slope  ///< learned: the slope for negative x
    };

    std::string_view name;  ///< name, as in `act` of checkpoints
    at::Tensor (*value)(const at::Tensor& x, const at::Tensor& parameter);
    at::Tensor (*gradient)(const at::Tensor& value_gradient, const at::Tensor& x,
                           const at::Tensor& parameter);  ///< value_gradient * f'(x)
    Parameter parameter = Parameter::None;
};

/// The activations of the reference's models, with its constants: leaky_relu 0.1, threshold(1, 1), elu and celu 1; gelu
/// is the exact erf form. Sorted by name.
std::span<const ActivationFunction> activation_functions();

/// Null for an unknown name; case-sensitive.
const ActivationFunction* find_activation(std::string_view name);

}  // namespace meshard
