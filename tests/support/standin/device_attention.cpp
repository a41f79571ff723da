// SPDX-License-Identifier: Apache-2.0
// Attention of the stand-in accelerator by the operators that LibTorch has for GPUs: what those demand of their
// arguments (flash_api.cpp, kernel_forward.h and kernel_backward.h of its transformers), checked or not, is demanded
// here, and what they return has their shape. The CPU's kernel computes.
#include "tests/support/standin/device_runtime.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

namespace meshard::standin {
namespace {

constexpr std::int64_t kWordBytes = 16, kLogSumRows = 32;

/// Whether all rows begin at words, and for operands, unlike masks, are read in whole words.
void check_words(const char* name, const at::Tensor& x, bool is_operand = true)
{
    const auto word = kWordBytes / static_cast<std::int64_t>(x.itemsize());
    TORCH_CHECK(x.dim() == 4, "standin: attention's ", name, " must have four dimensions, not ", x.sizes());
    TORCH_CHECK(x.size(3) > 0 && x.stride(3) == 1 && (!is_operand || x.size(3) % word == 0),
                "standin: rows of attention's ", name, " must lie in whole words; sizes ", x.sizes(), ", strides ",
                x.strides());
    TORCH_CHECK(reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % kWordBytes == 0, "standin: attention's ", name,
                " does not begin at a word");
    for (std::int64_t d = 0; d < 3; ++d) {
        const bool is_asked = is_operand || x.size(d) > 1;
        TORCH_CHECK(!is_asked || x.stride(d) % word == 0, "standin: attention's ", name, " has stride ", x.stride(d),
                    ", no whole words");
    }
}

void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout,
                    std::initializer_list<at::ScalarType> types)
{
    check_words("query", q);
    check_words("key", k);
    check_words("value", v);
    TORCH_CHECK(std::find(types.begin(), types.end(), q.scalar_type()) != types.end(),
                "standin: attention does not take ", q.scalar_type());
    TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
                "standin: attention of several types");
    TORCH_CHECK(k.device() == q.device() && v.device() == q.device(),
                "standin: attention of tensors of several devices");
    TORCH_CHECK(q.size(0) > 0 && q.size(1) > 0 && q.size(2) > 0 && k.size(2) > 0, "standin: attention of nothing");
    TORCH_CHECK(dropout == 0, "standin: attention without dropout");
}

void check_results(const at::Tensor& q, const at::Tensor& v, const at::Tensor& gradient, const at::Tensor& output,
                   const at::Tensor& sum, std::int64_t rows)
{
    check_words("gradient", gradient);
    check_words("output", output);
    const auto shape = at::IntArrayRef({q.size(0), q.size(1), q.size(2), v.size(3)}).vec();
    TORCH_CHECK(gradient.sizes() == shape && output.sizes() == shape, "standin: attention's output ", output.sizes(),
                " or its gradient ", gradient.sizes());
    TORCH_CHECK(gradient.scalar_type() == q.scalar_type() && output.scalar_type() == q.scalar_type(),
                "standin: attention's output has another type");
    TORCH_CHECK(sum.scalar_type() == at::kFloat && sum.is_contiguous() &&
                    sum.sizes() == at::IntArrayRef({q.size(0), q.size(1), rows}),
                "standin: attention's log-sum-exp of ", sum.scalar_type(), ", sizes ", sum.sizes(), ", strides ",
                sum.strides());
}

void check_mask(const std::optional<at::Tensor>& mask, const at::Tensor& q, const at::Tensor& k)
{
    if (!mask || !mask->defined()) return;
    check_words("mask", *mask, /*is_operand=*/false);
    TORCH_CHECK(mask->sizes() == at::IntArrayRef({q.size(0), q.size(1), q.size(2), k.size(2)}),
                "standin: attention's mask ", mask->sizes());
    TORCH_CHECK(mask->scalar_type() == q.scalar_type(), "standin: attention's mask of ", mask->scalar_type());
}

at::Tensor widened(const at::Tensor& x, std::int64_t width)
{
    return at::constant_pad_nd(x, {0, width - x.size(3)});
}

/// The output as the efficient kernel's backward pass reads it: in half precision the kernel itself multiplies it by
/// its gradient, and takes a row for as long as those of all heads together, whatever the strides (`o_strideM` of
/// kernel_backward.h).
at::Tensor as_read(const at::Tensor& output)
{
    if (output.scalar_type() == at::kFloat) return output;
    return output.as_strided(output.sizes(), {output.stride(0), output.stride(1), output.size(1) * output.size(3), 1},
                             output.storage_offset());
}

/// Each head of the keys once for each query head that shares it.
at::Tensor for_members(const at::Tensor& x, std::int64_t members)
{
    return members == 1 ? x : x.unsqueeze(2).expand({-1, -1, members, -1, -1}).flatten(1, 2);
}

using FlashResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                               at::Tensor, at::Tensor>;

FlashResult flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout, bool causal, bool,
                  std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_flash_attention");
    check_operands(q, k, v, dropout, {at::kHalf, at::kBFloat16});
    TORCH_CHECK(q.size(3) == v.size(3) && q.size(3) <= 256 && q.size(1) % k.size(1) == 0,
                "standin: flash attention of ", q.sizes(), " and ", v.sizes());
    TORCH_CHECK(!causal || q.size(2) == k.size(2),
                "standin: flash attention that is causal begins at the last key, not the first");
    const auto members = q.size(1) / k.size(1);
    const auto [output, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, for_members(k, members), for_members(v, members), 0.0, causal, std::nullopt, scale);
    return {output, sum, at::Tensor(), at::Tensor(), q.size(2), k.size(2), at::Tensor(), at::Tensor(), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
flash_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& output, const at::Tensor& sum, const at::Tensor& bounds, const at::Tensor&,
               c10::SymInt rows, c10::SymInt columns, double dropout, bool causal, const at::Tensor&, const at::Tensor&,
               std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_flash_attention_backward");
    check_operands(q, k, v, dropout, {at::kHalf, at::kBFloat16});
    check_results(q, v, gradient, output, sum, q.size(2));
    TORCH_CHECK(!bounds.defined() && rows == q.size(2) && columns == k.size(2),
                "standin: flash attention of packed sequences");
    TORCH_CHECK(!causal || q.size(2) == k.size(2),
                "standin: flash attention that is causal begins at the last key, not the first");
    const auto members = q.size(1) / k.size(1);
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, for_members(k, members), for_members(v, members), output, sum, 0.0, causal, std::nullopt, scale);
    const auto added = [&](const at::Tensor& x) {
        return members == 1 ? x : x.unflatten(1, {k.size(1), members}).sum(2);
    };
    return {dq, added(dk), added(dv)};
}

/// What LibTorch's choice for GPUs asks of the operands before it takes cuDNN (check_cudnn_tensor_shapes).
void check_for_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout)
{
    check_operands(q, k, v, dropout, {at::kHalf, at::kBFloat16});
    TORCH_CHECK(q.size(3) <= 128 && q.size(3) % 8 == 0 && v.size(3) <= 128 && v.size(3) % 8 == 0 && k.size(2) > 1 &&
                    q.size(1) % k.size(1) == 0,
                "standin: attention by cuDNN of ", q.sizes(), ", ", k.sizes(), " and ", v.sizes());
}

FlashResult cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
                  bool wants_sum, double dropout, bool causal, bool, std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_cudnn_attention");
    check_for_cudnn(q, k, v, dropout);
    TORCH_CHECK(!mask && wants_sum, "standin: attention by cuDNN without a mask");
    const auto members = q.size(1) / k.size(1), width = std::max(q.size(3), v.size(3));
    const auto [output, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        widened(q, width), widened(for_members(k, members), width), widened(for_members(v, members), width), 0.0,
        causal, std::nullopt, scale);
    const auto seed = at::empty({}, q.options().dtype(at::kLong));
    return {output.narrow(3, 0, v.size(3)),
            sum.unsqueeze(3),
            at::Tensor(),
            at::Tensor(),
            q.size(2),
            k.size(2),
            seed,
            seed,
            at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor>
cudnn_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
               const at::Tensor& output, const at::Tensor& sum, const at::Tensor& seed, const at::Tensor& offset,
               const at::Tensor& mask, const at::Tensor& bounds, const at::Tensor&, c10::SymInt rows,
               c10::SymInt columns, double dropout, bool causal, std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_cudnn_attention_backward");
    check_for_cudnn(q, k, v, dropout);
    TORCH_CHECK(sum.dim() == 4 && sum.size(3) == 1, "standin: cuDNN's log-sum-exp of sizes ", sum.sizes());
    check_results(q, v, gradient, output, sum.squeeze(3), q.size(2));
    TORCH_CHECK(!mask.defined() && !bounds.defined() && rows == q.size(2) && columns == k.size(2) && seed.defined() &&
                    offset.defined(),
                "standin: attention by cuDNN of packed sequences");
    const auto members = q.size(1) / k.size(1), width = std::max(q.size(3), v.size(3));
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        widened(gradient, width), widened(q, width), widened(for_members(k, members), width),
        widened(for_members(v, members), width), widened(output, width), sum.squeeze(3), 0.0, causal, std::nullopt,
        scale);
    const auto added = [&](const at::Tensor& x, std::int64_t own) {
        const auto part = x.narrow(3, 0, own);
        return members == 1 ? part : part.unflatten(1, {k.size(1), members}).sum(2);
    };
    return {dq.narrow(3, 0, q.size(3)), added(dk, k.size(3)), added(dv, v.size(3))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
efficient(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
          bool wants_sum, double dropout, bool causal, std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_efficient_attention");
    check_operands(q, k, v, dropout, {at::kHalf, at::kBFloat16, at::kFloat});
    check_mask(mask, q, k);
    TORCH_CHECK(q.size(1) == k.size(1) && wants_sum, "standin: efficient attention of ", q.sizes(), " and ", k.sizes());
    const auto width = std::max(q.size(3), v.size(3)), rows = (q.size(2) + kLogSumRows - 1) / kLogSumRows * kLogSumRows;
    const auto [output, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        widened(q, width), widened(k, width), widened(v, width), 0.0, causal, mask, scale);
    const auto sums = at::constant_pad_nd(sum, {0, rows - q.size(2)}, std::numeric_limits<double>::infinity());
    // Rows of tokens, heads adjacent.
    return {output.narrow(3, 0, v.size(3)).transpose(1, 2).contiguous().transpose(1, 2), sums, at::Tensor(),
            at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
efficient_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mask, const at::Tensor& output, const at::Tensor& sum, const at::Tensor&,
                   const at::Tensor&, double dropout, std::array<bool, 4> wanted, bool causal,
                   std::optional<double> scale)
{
    count(q.device().index(), Count::Launch, "aten::_scaled_dot_product_efficient_attention_backward");
    const auto given = mask.defined() ? std::make_optional(mask) : std::nullopt;
    const auto width = std::max(q.size(3), v.size(3)), rows = (q.size(2) + kLogSumRows - 1) / kLogSumRows * kLogSumRows;
    check_operands(q, k, v, dropout, {at::kHalf, at::kBFloat16, at::kFloat});
    check_mask(given, q, k);
    check_results(q, v, gradient, output, sum, rows);
    TORCH_CHECK(q.size(1) == k.size(1) && !wanted[3], "standin: efficient attention of ", q.sizes(), " and ",
                k.sizes());
    // They are subtracted from scores without a look at the number of rows.
    const auto padding = as_host(sum.narrow(2, q.size(2), rows - q.size(2)));
    TORCH_CHECK(padding.isposinf().all().item<bool>(),
                "standin: attention's log-sum-exp is not filled up with infinity");
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        widened(gradient, width), widened(q, width), widened(k, width), widened(v, width),
        widened(as_read(output), width), sum.narrow(2, 0, q.size(2)).contiguous(), 0.0, causal, given, scale);
    return {dq.narrow(3, 0, q.size(3)), dk.narrow(3, 0, q.size(3)), dv.narrow(3, 0, v.size(3)), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("_scaled_dot_product_flash_attention", &flash);
    library.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
    library.impl("_scaled_dot_product_cudnn_attention", &cudnn);
    library.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
    library.impl("_scaled_dot_product_efficient_attention", &efficient);
    library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
}

}  // namespace
}  // namespace meshard::standin
