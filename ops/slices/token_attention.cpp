// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/token_attention.h"

#include "ops/cuda/tile_kernels.h"
#include "ops/rows/on_gpu.h"
#include "ops/slices/slice_layout.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace meshard {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

double root_of_dim(const at::Tensor& tokens)
{
    return std::sqrt(static_cast<double>(tokens.size(-1)));
}

TokenAttention pointers(const at::Tensor& tokens, const at::Tensor& weight)
{
    return {tokens.const_data_ptr<float>(),
            weight.const_data_ptr<float>(),
            static_cast<int>(tokens.size(0) * tokens.size(1)),
            static_cast<int>(tokens.size(2)),
            static_cast<int>(tokens.size(3)),
            static_cast<float>(1 / root_of_dim(tokens))};
}

struct TokenAttentionFunction : torch::autograd::Function<TokenAttentionFunction> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& qkv_weight)
    {
        const auto given = tokens.contiguous(), weight = qkv_weight.contiguous();
        auto states = at::empty_like(given);
        on_gpu(given, [&](const auto& executor) {
            attend_tokens(executor, pointers(given, weight), states.mutable_data_ptr<float>());
        });
        context->save_for_backward({given, weight, states});
        return states;
    }

    static variable_list backward(AutogradContext* context, variable_list gradients)
    {
        refuse_second_derivative("token_attention");
        const auto saved = context->get_saved_variables();
        const auto gradient = gradients[0].contiguous();
        auto of_tokens = at::empty_like(saved[0]), of_weight = at::empty_like(saved[1]);
        on_gpu(gradient, [&](const auto& executor) {
            attend_tokens_backward(executor, pointers(saved[0], saved[1]),
                                   {saved[2].const_data_ptr<float>(), gradient.const_data_ptr<float>(),
                                    of_tokens.mutable_data_ptr<float>(), of_weight.mutable_data_ptr<float>()});
        });
        return {of_tokens, of_weight};
    }
};

bool has_kernel(const at::Tensor& tokens)
{
    if (tokens.is_cpu() || !has_kernels(tokens.device()) || tokens.scalar_type() != at::kFloat) return false;
    bool fits = false;
    on_gpu(tokens, [&](const auto& executor) {
        fits = tokens_fit(executor, static_cast<int>(tokens.size(2)), static_cast<int>(tokens.size(3)));
    });
    return fits;
}

}  // namespace

at::Tensor token_attention(const at::Tensor& tokens, const at::Tensor& qkv_weight)
{
    return has_kernel(tokens) ? TokenAttentionFunction::apply(tokens, qkv_weight)
                              : token_attention_by_operators(tokens, qkv_weight);
}

at::Tensor token_attention_by_operators(const at::Tensor& tokens, const at::Tensor& qkv_weight)
{
    const auto parts = at::linear(tokens, qkv_weight).chunk(3, -1);
    const auto logits = at::matmul(parts[0], parts[1].transpose(-2, -1)) / root_of_dim(tokens);
    return at::matmul(at::softmax(logits, -1), parts[2]);
}

}  // namespace meshard
