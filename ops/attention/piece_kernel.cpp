// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/piece_kernel.h"

#include "sharding/tensor/exact_mode.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

namespace meshard {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t kWordBytes = 16;  // kernels of GPUs read this many bytes at a time
// Rows in a block of log-sum-exps, which the efficient kernel reads as a whole.
constexpr std::int64_t kLogSumRows = 32;
constexpr std::int64_t kMostCudnnWidth = 128;  // not every version of cuDNN supports wider heads in backward
constexpr std::int64_t kMostFlashWidth = 192;  // not every GPU has the shared memory for wider heads in backward
constexpr std::int64_t kMostBlocks = 65535;    // largest extent of a CUDA grid along y and z

/// Whether log-sum-exps of LibTorch's cuDNN operator end with a dimension of one, which depends on LibTorch's version;
/// set by the last forward pass.
std::atomic<bool> cudnn_sums_are_columns = true;

std::int64_t up_to_multiple(std::int64_t count, std::int64_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

std::int64_t numbers_a_word(const at::Tensor& x)
{
    return kWordBytes / static_cast<std::int64_t>(x.itemsize());
}

/// Returns (B, R, L, X) in the form that kernels of GPUs need but do not fully check: every row starts at a word and is
/// padded with zeros to whole words. Returns the tensor itself if it has this form.
at::Tensor in_words(const at::Tensor& x)
{
    const auto word = numbers_a_word(x), width = up_to_multiple(x.size(3), word);
    bool is_so = width == x.size(3) && x.stride(3) == 1 &&
                 reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % kWordBytes == 0;
    for (std::int64_t d = 0; d < 3; ++d) is_so &= x.stride(d) % word == 0;
    if (is_so) return x;
    const auto room = at::zeros({x.size(0), x.size(2), x.size(1), width}, x.options()).transpose(1, 2);
    room.narrow(3, 0, x.size(3)).copy_(x);
    return room;
}

/// Returns (B, H, L, X) with heads interleaved in memory: the efficient kernel's backward in half precision assumes a
/// stride of H X between rows of the output, whatever the strides are.
at::Tensor rows_of_all_heads(const at::Tensor& x)
{
    return x.size(2) == 1 || x.stride(2) == x.size(1) * x.size(3) ? x : x.transpose(1, 2).contiguous().transpose(1, 2);
}

/// An additive mask for `num_keys` keys, in the type of the queries, whose rows start at words.
at::Tensor mask_in_words(const at::Tensor& mask, std::int64_t num_keys, at::ScalarType type)
{
    auto shape = mask.sizes().vec();
    shape[3] = up_to_multiple(num_keys, kWordBytes / static_cast<std::int64_t>(c10::elementSize(type)));
    auto added = at::zeros(shape, mask.options().dtype(type)).narrow(3, 0, num_keys);
    if (mask.scalar_type() == at::kBool)
        added.masked_fill_(mask.logical_not(), -kInfinite);
    else
        added.copy_(mask);
    return added;
}

/// (B, H, L, S), or none.
std::optional<at::Tensor> expanded_mask(const AttentionPiece& piece)
{
    if (!piece.mask.defined()) return std::nullopt;
    return piece.mask.expand({piece.queries.size(0), piece.queries.size(1), piece.queries.size(2), piece.keys.size(2)});
}

/// For each key head the `member`th of the query heads that share it: (B, K, L, X), a view. Masks may have a single
/// head.
at::Tensor group_member(const at::Tensor& tensor, std::int64_t key_heads, std::int64_t member)
{
    if (!tensor.defined() || tensor.size(1) == 1 || tensor.size(1) == key_heads) return tensor;
    return tensor.unflatten(1, {key_heads, tensor.size(1) / key_heads}).select(2, member);
}

/// How many times the kernel is called for query heads that share key heads.
std::int64_t num_members(PieceKernel kernel, const AttentionPiece& piece)
{
    return kernel == PieceKernel::Flash || kernel == PieceKernel::Cudnn ? 1
                                                                        : piece.queries.size(1) / piece.keys.size(1);
}

AttentionPiece member_of(const AttentionPiece& piece, std::int64_t members, std::int64_t member)
{
    if (members == 1) return piece;
    auto part = piece;
    part.queries = group_member(piece.queries, piece.keys.size(1), member);
    part.mask = group_member(piece.mask, piece.keys.size(1), member);
    return part;
}

/// The piece with its mask in the form that the kernel supports.
AttentionPiece with_added_mask(PieceKernel kernel, const AttentionPiece& piece)
{
    auto with = piece;
    if (!piece.mask.defined()) return with;
    const auto type = piece.queries.scalar_type();
    with.mask = kernel == PieceKernel::Efficient ? mask_in_words(piece.mask, piece.keys.size(2), type)
                                                 : added_mask(piece.mask, type);
    return with;
}

/// (b, h, l): rows that attend to no key. Kernels return a log-sum-exp of zero for them.
at::Tensor rows_without_keys(const at::Tensor& mask)
{
    return mask.scalar_type() == at::kBool ? mask.any(-1).logical_not() : mask.amax(-1) == -kInfinite;
}

AttentionOutput run_kernel(PieceKernel kernel, const AttentionPiece& piece)
{
    const auto& [q, k, v, mask, scale, triangular] = piece;
    if (kernel == PieceKernel::Cpu) {
        auto [output, sum] = at::_scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, triangular, mask.defined() ? std::make_optional(mask) : std::nullopt, scale);
        return {output, sum};
    }
    if (kernel == PieceKernel::Cudnn) {
        const auto result = at::_scaled_dot_product_cudnn_attention(in_words(q), in_words(k), in_words(v), std::nullopt,
                                                                    /*compute_log_sumexp=*/true, 0.0, triangular,
                                                                    /*return_debug_mask=*/false, scale);
        const auto& sums = std::get<1>(result);
        cudnn_sums_are_columns = sums.dim() == 4;
        return {std::get<0>(result), sums.dim() == 4 ? sums.squeeze(3) : sums};
    }
    if (kernel == PieceKernel::Flash) {
        const auto result = at::_scaled_dot_product_flash_attention(in_words(q), in_words(k), in_words(v), 0.0,
                                                                    triangular, /*return_debug_mask=*/false, scale);
        return {std::get<0>(result).narrow(3, 0, v.size(3)), std::get<1>(result)};
    }
    const auto result =
        at::_scaled_dot_product_efficient_attention(in_words(q), in_words(k), in_words(v), expanded_mask(piece),
                                                    /*compute_log_sumexp=*/true, 0.0, triangular, scale);
    return {std::get<0>(result).narrow(3, 0, v.size(3)), std::get<1>(result).narrow(2, 0, q.size(2))};
}

/// Runs the kernel's backward for queries, keys and values.
AttentionGradients run_backward_kernel(PieceKernel kernel, const AttentionPiece& piece,
                                       const at::Tensor& output_gradient, const at::Tensor& output,
                                       const at::Tensor& log_sum_exp)
{
    const auto& [q, k, v, mask, scale, triangular] = piece;
    if (kernel == PieceKernel::Cpu) {
        auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            output_gradient, q, k, v, output, log_sum_exp, 0.0, triangular,
            mask.defined() ? std::make_optional(mask) : std::nullopt, scale);
        return {dq, dk, dv, at::Tensor()};
    }
    const at::Tensor none;  // the state of dropout, and the bounds of packed sequences
    const auto queries = in_words(q), keys = in_words(k), values = in_words(v), gradient = in_words(output_gradient),
               result = in_words(output);
    at::Tensor dq, dk, dv;
    if (kernel == PieceKernel::Cudnn) {
        const auto sums = log_sum_exp.contiguous();
        const auto unused = at::empty({}, q.options().dtype(at::kLong));
        std::tie(dq, dk, dv) = at::_scaled_dot_product_cudnn_attention_backward(
            gradient, queries, keys, values, result, cudnn_sums_are_columns ? sums.unsqueeze(3) : sums, unused, unused,
            none, none, none, q.size(2), k.size(2), 0.0, triangular, scale);
    } else if (kernel == PieceKernel::Flash) {
        std::tie(dq, dk, dv) = at::_scaled_dot_product_flash_attention_backward(
            gradient, queries, keys, values, result, log_sum_exp.contiguous(), none, none, q.size(2), k.size(2), 0.0,
            triangular, none, none, scale);
    } else {
        // Rows beyond the last one get weight zero.
        const auto sums =
            at::constant_pad_nd(log_sum_exp, {0, up_to_multiple(q.size(2), kLogSumRows) - q.size(2)}, kInfinite)
                .contiguous();
        std::tie(dq, dk, dv, std::ignore) = at::_scaled_dot_product_efficient_attention_backward(
            gradient, queries, keys, values, expanded_mask(piece).value_or(none), rows_of_all_heads(result), sums, none,
            none, 0.0, {true, true, true, false}, triangular, scale);
    }
    return {dq.narrow(3, 0, q.size(3)), dk.narrow(3, 0, k.size(3)), dv.narrow(3, 0, v.size(3)), at::Tensor()};
}

void add_gradients(PieceKernel kernel, const AttentionPiece& piece, const AttentionQueries& queries,
                   const AttentionGradients& gradients)
{
    const auto members = num_members(kernel, piece), key_heads = piece.keys.size(1);
    for (std::int64_t g = 0; g < members; ++g) {
        const auto member = [&](const at::Tensor& x) { return members > 1 ? group_member(x, key_heads, g) : x; };
        const auto found = run_backward_kernel(kernel, member_of(piece, members, g), member(queries.output_gradient),
                                               member(queries.output), member(queries.log_sum_exp));
        if (gradients.queries.defined()) member(gradients.queries).add_(found.queries);
        if (gradients.keys.defined()) gradients.keys.add_(found.keys);
        if (gradients.values.defined()) gradients.values.add_(found.values);
    }
}

}  // namespace

at::Tensor added_mask(const at::Tensor& mask, at::ScalarType type)
{
    if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
    return at::zeros(mask.sizes(), mask.options().dtype(type)).masked_fill_(mask.logical_not(), -kInfinite);
}

PieceKernel choose_piece_kernel(const PieceForm& form)
{
    if (form.drops || form.wants_mask_gradient || std::min({form.batch, form.heads, form.width, form.value_width}) == 0)
        return PieceKernel::Tiles;
    if (form.device == c10::kCPU) return form.width == form.value_width ? PieceKernel::Cpu : PieceKernel::Tiles;

    const bool is_half = form.type == at::kHalf || form.type == at::kBFloat16;
    if (exact_mode() || (!is_half && form.type != at::kFloat) || std::max(form.batch, form.heads) > kMostBlocks)
        return PieceKernel::Tiles;
    const auto fits_cudnn = [](std::int64_t width) { return width <= kMostCudnnWidth && width % 8 == 0; };
    if (is_half && !form.mask_type && form.prefers_cudnn && fits_cudnn(form.width) && fits_cudnn(form.value_width))
        return PieceKernel::Cudnn;
    const bool takes_flash =
        is_half && !form.mask_type && form.width == form.value_width && form.width <= kMostFlashWidth;
    if (takes_flash && at::globalContext().userEnabledFlashSDP()) return PieceKernel::Flash;
    // The efficient kernel counts in 32 bits, and masks are rounded to the type of the queries.
    const bool takes_mask = !form.mask_type || *form.mask_type == at::kBool || *form.mask_type == form.type;
    const bool takes_efficient = takes_mask && form.most_numbers <= std::numeric_limits<std::int32_t>::max();
    return takes_efficient && at::globalContext().userEnabledMemEfficientSDP() ? PieceKernel::Efficient
                                                                               : PieceKernel::Tiles;
}

AttentionOutput attend_to_piece(PieceKernel kernel, const AttentionPiece& piece)
{
    const auto members = num_members(kernel, piece);
    const auto whole = with_added_mask(kernel, piece);
    std::vector<at::Tensor> outputs, sums;
    for (std::int64_t g = 0; g < members; ++g) {
        const auto [output, sum] = run_kernel(kernel, member_of(whole, members, g));
        outputs.push_back(output);
        sums.push_back(sum);
    }
    AttentionOutput result{members > 1 ? at::stack(outputs, 2).flatten(1, 2) : outputs[0],
                           members > 1 ? at::stack(sums, 2).flatten(1, 2) : sums[0]};
    if (piece.mask.defined())
        result.log_sum_exp = result.log_sum_exp.masked_fill(rows_without_keys(piece.mask), -kInfinite);
    return result;
}

void add_piece_gradients(PieceKernel kernel, const AttentionPiece& piece, const AttentionQueries& queries,
                         const AttentionGradients& gradients)
{
    const auto whole = with_added_mask(kernel, piece);
    auto all = queries;
    all.output = queries.output.to(piece.queries.scalar_type());
    if (kernel != PieceKernel::Cpu) return add_gradients(kernel, whole, all, gradients);

    // A few heads of a few batches at a time, since the kernel's results need memory before they are added; but at
    // least one head of one batch for each thread.
    constexpr std::int64_t kNumbers = 1 << 16;
    const auto &k = piece.keys, &v = piece.values;
    const auto batches = k.size(0), key_heads = k.size(1), members = piece.queries.size(1) / key_heads,
               threads = std::int64_t{at::get_num_threads()};
    const auto a_head = piece.queries.size(2) * k.size(3) + k.size(2) * (k.size(3) + v.size(3));
    const auto num_heads = std::clamp(std::max(kNumbers / a_head, threads), std::int64_t{1}, key_heads);
    const auto num_batches =
        num_heads < key_heads ? 1
                              : std::clamp(std::max(kNumbers / a_head, threads) / key_heads, std::int64_t{1}, batches);
    for (std::int64_t b = 0; b < batches; b += num_batches) {
        for (std::int64_t h = 0; h < key_heads; h += num_heads) {
            const auto part = [&](const at::Tensor& x, std::int64_t heads_of_one) {
                if (!x.defined()) return x;
                auto narrowed = x.size(0) > 1 ? x.narrow(0, b, std::min(num_batches, batches - b)) : x;
                return narrowed.size(1) > 1
                           ? narrowed.narrow(1, h * heads_of_one, std::min(num_heads, key_heads - h) * heads_of_one)
                           : narrowed;
            };
            add_gradients(
                kernel,
                {part(whole.queries, members), part(k, 1), part(v, 1), part(whole.mask, members), piece.scale,
                 piece.triangular},
                {part(all.queries, members), part(all.output_gradient, members), part(all.output, members),
                 part(all.log_sum_exp, members), all.rows},
                {part(gradients.queries, members), part(gradients.keys, 1), part(gradients.values, 1), at::Tensor()});
        }
    }
}

}  // namespace meshard
