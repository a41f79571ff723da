// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/device_rows.h"

#include "ops/cuda/tile_kernels.h"
#include "ops/rows/on_gpu.h"

#include <ATen/ATen.h>

namespace meshard {
namespace {

constexpr double kNormEpsilon = 1e-5;  // as in torch::nn::LayerNorm

RowType row_type(const at::Tensor& x)
{
    switch (x.scalar_type()) {
    case at::kBFloat16:
        return RowType::Bfloat16;
    case at::kHalf:
        return RowType::Float16;
    case at::kFloat:
        return RowType::Float32;
    default:
        return RowType::Float64;
    }
}

const void* pointer_to(const at::Tensor& tensor)
{
    return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

at::Tensor vector_of(const at::Tensor& rows, std::int64_t size)
{
    return at::empty({size}, rows.options().dtype(sum_type_of(rows.scalar_type())));
}

}  // namespace

at::ScalarType sum_type_of(at::ScalarType type)
{
    return type == at::kDouble ? at::kDouble : at::kFloat;
}

NormalRows normal_rows(const at::Tensor& x, const at::Tensor& add, const at::Tensor& bias, const at::Tensor& after,
                       at::Tensor* sum)
{
    NormalRows found{at::empty_like(x), vector_of(x, x.size(0))};
    if (sum) *sum = at::empty_like(x);
    by_kernels(x, [&](const auto& executor) {
        normalize_rows(executor, {row_type(x), x.const_data_ptr(), pointer_to(add), pointer_to(bias), pointer_to(after),
                                  sum ? sum->mutable_data_ptr() : nullptr, found.x_hat.mutable_data_ptr(),
                                  found.scales.mutable_data_ptr(), x.size(0), x.size(1), kNormEpsilon});
    });
    return found;
}

at::Tensor normal_rows_backward(const at::Tensor& gradient, const NormalRows& rows, const at::Tensor& before,
                                at::Tensor* before_sums, at::Tensor* result_sums)
{
    if (before_sums) *before_sums = vector_of(gradient, gradient.size(1));
    if (result_sums) *result_sums = vector_of(gradient, gradient.size(1));
    by_kernels(gradient, [&](const auto& executor) {
        normalize_rows_backward(executor, {row_type(gradient), gradient.const_data_ptr(), rows.x_hat.const_data_ptr(),
                                           rows.scales.const_data_ptr(), pointer_to(before), gradient.data_ptr(),
                                           before_sums ? before_sums->mutable_data_ptr() : nullptr,
                                           result_sums ? result_sums->mutable_data_ptr() : nullptr, gradient.size(0),
                                           gradient.size(1)});
    });
    return gradient;
}

at::Tensor gelu_of(const at::Tensor& x, bool in_place)
{
    const auto y = in_place ? x : at::empty_like(x);
    by_kernels(x, [&](const auto& executor) {
        gelu_rows(executor, row_type(x), x.const_data_ptr(), y.data_ptr(), x.numel());
    });
    return y;
}

at::Tensor gelu_backward_in_place(const at::Tensor& x, const at::Tensor& gradient, at::Tensor* y)
{
    const auto sums = vector_of(x, x.size(1));
    if (y) *y = at::empty_like(x);
    by_kernels(x, [&](const auto& executor) {
        gelu_rows_backward(executor, {row_type(x), x.const_data_ptr(), gradient.data_ptr(),
                                      y ? y->mutable_data_ptr() : nullptr, sums.data_ptr(), x.size(0), x.size(1)});
    });
    return sums;
}

at::Tensor sums_of_rows(const at::Tensor& x)
{
    const auto sums = vector_of(x, x.size(1));
    by_kernels(x, [&](const auto& executor) {
        sum_rows(executor, row_type(x), x.const_data_ptr(), sums.data_ptr(), x.size(0), x.size(1));
    });
    return sums;
}

void fold_weights(const std::vector<FoldedLinear>& products)
{
    FoldedWeights all{row_type(products.front().folded.weight), {}, 0};
    for (const auto& [product, norm, folded] : products)
        all.products[all.count++] = {
            pointer_to(product.weight), pointer_to(product.bias),
            pointer_to(norm.weight),    pointer_to(norm.bias),
            folded.weight.data_ptr(),   folded.bias.defined() ? folded.bias.data_ptr() : nullptr,
            product.weight.size(0),     product.weight.size(1)};
    by_kernels(products.front().folded.weight, [&](const auto& executor) { fold_weights(executor, all); });
}

void unfold_weights(std::vector<UnfoldedLinear>& products)
{
    UnfoldedWeights all{row_type(products.front().weights.front()), {}, 0};
    for (auto& each : products) {
        auto& to = all.products[all.count++];
        each.norm_gradient = {at::empty_like(each.norm.weight), at::empty_like(each.norm.bias)};
        to = {pointer_to(each.gradient.weight),
              pointer_to(each.gradient.bias),
              pointer_to(each.norm.weight),
              pointer_to(each.norm.bias),
              {},
              {},
              each.norm_gradient.weight.data_ptr(),
              each.norm_gradient.bias.data_ptr(),
              0,
              each.weights.front().size(0),
              each.weights.front().size(1)};
        for (const auto& weight : each.weights) {
            each.weight_gradients.push_back(at::empty_like(weight));
            to.weights[to.sources] = pointer_to(weight);
            to.weight_gradients[to.sources++] = each.weight_gradients.back().data_ptr();
        }
    }
    by_kernels(products.front().weights.front(), [&](const auto& executor) { unfold_weights(executor, all); });
}

at::Tensor sums_of_products(const at::Tensor& left, const at::Tensor& right)
{
    if (left.scalar_type() == sum_type_of(left.scalar_type())) return at::mm(left.t(), right);
    if (left.is_cpu()) return at::mm(left.to(at::kFloat).t(), right.to(at::kFloat));
    return at::mm(left.t(), right, at::kFloat);
}

}  // namespace meshard
