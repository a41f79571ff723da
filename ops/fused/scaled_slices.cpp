// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/scaled_slices.h"

#include "ops/cuda/tile_kernels.h"
#include "ops/rows/on_gpu.h"
#include "ops/slices/slice_layout.h"
#include "sharding/parameters/stored_parameter.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

SliceScaling pointers(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& temperature, double least,
                      double most)
{
    return {weight.const_data_ptr<float>(),
            bias.const_data_ptr<float>(),
            temperature.const_data_ptr<float>(),
            static_cast<float>(least),
            static_cast<float>(most),
            temperature.numel(),
            weight.size(0),
            weight.size(1)};
}

struct ScalingFunction : torch::autograd::Function<ScalingFunction> {
    static variable_list forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& bias,
                                 const at::Tensor& temperature, double least, double most)
    {
        const auto w = weight.contiguous(), b = bias.contiguous(), t = temperature.contiguous();
        auto scaled = at::empty({t.numel(), w.size(0), w.size(1)}, w.options()),
             scaled_bias = at::empty({t.numel(), w.size(0)}, w.options());
        on_gpu(w, [&](const auto& executor) {
            scale_slices(executor, pointers(w, b, t, least, most), scaled.mutable_data_ptr<float>(),
                         scaled_bias.mutable_data_ptr<float>());
        });
        context->save_for_backward({w, b, t});
        context->saved_data["least"] = least;
        context->saved_data["most"] = most;
        return {scaled, scaled_bias};
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("slices_by_temperature");
        const auto saved = context->get_saved_variables();
        const auto of = pointers(saved[0], saved[1], saved[2], context->saved_data["least"].toDouble(),
                                 context->saved_data["most"].toDouble());
        // Of sharded points these are pending sums; so are the results, which are linear in them.
        const auto& sharded = is_sharded(gradients[0]) ? gradients[0] : gradients[1];
        const auto spec = is_sharded(sharded) ? spec_of(sharded) : nullptr;
        const auto scaled = local_in(gradients[0], spec).contiguous(),
                   scaled_bias = local_in(gradients[1], spec).contiguous();
        auto weight = at::empty_like(saved[0]), bias = at::empty_like(saved[1]), temperature = at::empty_like(saved[2]);
        on_gpu(scaled, [&](const auto& executor) {
            scale_slices_backward(executor, of,
                                  {scaled.const_data_ptr<float>(), scaled_bias.const_data_ptr<float>(),
                                   weight.mutable_data_ptr<float>(), bias.mutable_data_ptr<float>(),
                                   temperature.mutable_data_ptr<float>()});
        });
        return {wrapped(weight, spec), wrapped(bias, spec), wrapped(temperature, spec), {}, {}};
    }
};

bool has_kernel(const at::Tensor& tensor)
{
    return !tensor.is_cpu() && has_kernels(tensor.device()) && tensor.scalar_type() == at::kFloat &&
           !is_sharded(tensor) && !is_stored(tensor);
}

}  // namespace

Affine<at::Tensor> slices_by_temperature(const Affine<at::Tensor>& slices, const at::Tensor& temperature, double least,
                                         double most)
{
    if (has_kernel(slices.weight) && has_kernel(slices.bias) && has_kernel(temperature)) {
        const auto found = ScalingFunction::apply(slices.weight, slices.bias, temperature, least, most);
        return {found[0], found[1]};
    }
    const auto factor = temperature.clamp(least, most).reciprocal().view({temperature.numel(), 1, 1});
    return {factor * slices.weight, factor.squeeze(-1) * slices.bias};
}

}  // namespace meshard
