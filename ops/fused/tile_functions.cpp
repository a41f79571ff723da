// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/tile_functions.h"

#include "ops/fused/tile_math.h"
#include "ops/slices/activations.h"
#include "ops/slices/row_noise.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

/// A guard that switches autograd and autocast off.
struct PlainOperators {
    at::AutoDispatchBelowADInplaceOrView no_history;
    c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// A tensor on this memory; operators write to it only if it is their target.
template <class T>
at::Tensor numbers(const T* memory, std::int64_t count)
{
    return at::from_blob(
        const_cast<T*>(memory), {count},
        at::TensorOptions(c10::CppTypeToScalarType<T>::value));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
}

template <class T>
at::Tensor parameter_of(const ActivationFunction& function, const T* parameter)
{
    return has_parameter(&function) ? numbers(parameter, 1) : at::Tensor();
}

}  // namespace

bool has_parameter(const ActivationFunction* function)
{
    return function && function->parameter != ActivationFunction::Parameter::None;
}

template <class T>
void activate(const ActivationFunction* function, const T* parameter, T* y, const T* x, std::int64_t count)
{
    if (!function) return gelu(y, x, count);
    const PlainOperators plain;
    numbers(y, count).copy_(function->value(numbers(x, count), parameter_of(*function, parameter)));
}

template <class T>
void activate_backward(const ActivationFunction* function, const T* parameter, T* gradient, T* y, const T* x,
                       std::int64_t count, T* parameter_gradient)
{
    if (!function) return gelu_backward(gradient, y, x, count);
    const PlainOperators plain;
    const auto input = numbers(x, count), slope = parameter_of(*function, parameter);
    auto of_value = numbers(gradient, count);
    numbers(y, count).copy_(function->value(input, slope));
    if (parameter_gradient && function->parameter == ActivationFunction::Parameter::Slope)
        *parameter_gradient += (of_value * input.clamp_max(0)).sum().template item<T>();
    of_value.copy_(function->gradient(of_value, input, slope));
}

template <class T>
void gumbel_noise(const TileNoise& noise, std::int64_t num_rows, std::int64_t n, T* rows)
{
    constexpr double kEpsilon = 1e-8;
    noise.draw->fill(noise.sample, noise.first, n, num_rows, {.row = 1, .number = n}, rows);
    const PlainOperators plain;
    numbers(rows, num_rows * n).add_(kEpsilon).log_().neg_().add_(kEpsilon).log_().neg_();
}

template void activate(const ActivationFunction*, const float*, float*, const float*, std::int64_t);
template void activate(const ActivationFunction*, const double*, double*, const double*, std::int64_t);
template void activate_backward(const ActivationFunction*, const float*, float*, float*, const float*, std::int64_t,
                                float*);
template void activate_backward(const ActivationFunction*, const double*, double*, double*, const double*, std::int64_t,
                                double*);
template void gumbel_noise(const TileNoise&, std::int64_t, std::int64_t, float*);
template void gumbel_noise(const TileNoise&, std::int64_t, std::int64_t, double*);

}  // namespace meshard
