// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention_block.h"

#include "sharding/ranks/parallel_for.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace meshard {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Part of a block of scores, in rows and columns of the block.
struct Rectangle {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0;
    bool triangular = false;  ///< square, and row i attends to columns 0 to i only
};

/// The parts of rows x columns that are not masked completely: those beyond the diagonal of a causal attention are left out.
std::vector<Rectangle> rectangles(RowRange rows, RowRange columns, bool causal)
{
    if (rows.length == 0 || columns.length == 0) return {};
    if (!causal) return {{0, rows.length, 0, columns.length, false}};
    std::vector<Rectangle> parts;
    const auto before = std::min(columns.end(), rows.start) - columns.start;  // keys to which all rows attend
    if (before > 0) parts.push_back({0, rows.length, 0, before, false});
    const auto begin = std::max(columns.start, rows.start), end = std::min(columns.end(), rows.end());
    if (begin < end) {
        parts.push_back({begin - rows.start, end - begin, begin - columns.start, end - begin, true});
        if (end < rows.end()) parts.push_back({end - rows.start, rows.end() - end, begin - columns.start, end - begin, false});
    }
    return parts;
}

/// Cuts a rectangle in slices of at most `length` rows. A slice of a triangle has only the columns to which its rows attend, and is no triangle.
std::vector<Rectangle> row_slices(const Rectangle& part, std::int64_t length)
{
    std::vector<Rectangle> slices;
    for (std::int64_t row = 0; row < part.rows; row += length) {
        auto slice = part;
        slice.row = part.row + row;
        slice.rows = std::min(length, part.rows - row);
        if (part.triangular) slice.columns = row + slice.rows;
        slices.push_back(slice);
    }
    return slices;
}

/// Entries of the mask for a rectangle; `column` counts from the mask's first.
at::Tensor mask_part(const at::Tensor& mask, const Rectangle& part, std::int64_t column)
{
    if (!mask.defined()) return mask;
    auto tile = mask;
    if (tile.size(2) > 1) tile = tile.narrow(2, part.row, part.rows);
    if (tile.size(3) > 1) tile = tile.narrow(3, column, part.columns);
    return tile;
}

at::Tensor added_mask(const at::Tensor& mask, at::ScalarType type)
{
    if (!mask.defined() || mask.scalar_type() != at::kBool) return mask;
    return at::zeros(mask.sizes(), mask.options().dtype(type)).masked_fill_(mask.logical_not(), kMinusInfinity);
}

/// LibTorch's fused kernel: no weights in memory, one type for all, values as wide as keys, no gradient of the mask.
bool is_fused(const AttentionSettings& settings, const at::Tensor& queries, const at::Tensor& values, bool wants_mask_gradient)
{
    return queries.is_cpu() && settings.dropout == 0 && !wants_mask_gradient && queries.size(3) == values.size(3) && queries.size(3) > 0 &&
           queries.size(0) > 0 && queries.size(1) > 0;
}

at::Tensor dense_rows(const at::Tensor& tensor)
{
    return tensor.size(3) > 1 && tensor.stride(3) != 1 ? tensor.contiguous() : tensor;
}

/// Of the query heads that share each key head, the `member`th: (B, K, R, X), a view. Masks and alike may have a single head.
at::Tensor group_member(const at::Tensor& tensor, std::int64_t key_heads, std::int64_t member)
{
    if (tensor.size(1) == 1 || tensor.size(1) == key_heads) return tensor;
    return tensor.unflatten(1, {key_heads, tensor.size(1) / key_heads}).select(2, member);
}

/// Spreads the bits of x; the finishing step of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t spread(std::uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/// 0 where a weight is dropped, 1 / (1 - dropout) elsewhere, for (B, H, rows, columns): depends only on the position in the whole, and on the
/// field or the seed that all ranks share.
at::Tensor kept_weights(const AttentionSettings& settings, const at::Tensor& scores, RowRange rows, RowRange columns)
{
    if (settings.kept.defined()) {
        const auto kept = settings.kept.narrow(0, settings.first_batch, scores.size(0)).narrow(1, settings.first_head, scores.size(1));
        const auto part = kept.narrow(2, rows.start, rows.length).narrow(3, columns.start, columns.length).to(scores.options());
        return settings.dropout < 1 ? part.div(1 - settings.dropout) : part;
    }
    auto kept = at::empty({scores.size(0), scores.size(1), rows.length, columns.length}, at::kFloat);
    auto* data = kept.data_ptr<float>();
    const auto heads = scores.size(1);
    const auto threshold = static_cast<std::uint64_t>(std::min(1.0, settings.dropout) * 0x1p32);
    const auto factor = settings.dropout < 1 ? static_cast<float>(1 / (1 - settings.dropout)) : 0.0F;
    constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15ull;
    at::parallel_for(0, scores.size(0) * heads * rows.length, 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto row = static_cast<std::uint64_t>(rows.start + i % rows.length);
            const auto head = settings.first_head + i / rows.length % heads;
            const auto batch = settings.first_batch + i / rows.length / heads;
            const auto plane = static_cast<std::uint64_t>(batch * settings.num_heads + head);
            const auto key = spread(spread(spread(static_cast<std::uint64_t>(settings.seed) + kStep) + plane * kStep) + row * kStep);
            auto* out = data + i * columns.length;
            for (std::int64_t j = 0; j < columns.length; ++j) {
                out[j] = spread(key + static_cast<std::uint64_t>(columns.start + j) * kStep) >> 32 >= threshold ? factor : 0.0F;
            }
        }
    });
    return kept.to(scores.options());
}

/// One rectangle with its tensors, for code that holds its scores in memory.
struct ScoreTile {
    const AttentionSettings& settings;
    at::Tensor queries, keys, values, mask;  // of the rectangle
    RowRange rows, columns;                  // in the whole
    bool triangular = false;

    std::int64_t key_heads() const { return keys.size(1); }

    /// (B, H, R, X) as (B, K, H / K * R, X): the heads that share a head of the keys one after the other.
    at::Tensor grouped(const at::Tensor& x) const
    {
        return x.reshape({x.size(0), key_heads(), x.size(1) / std::max<std::int64_t>(key_heads(), 1) * x.size(2), x.size(3)});
    }
    at::Tensor by_heads(const at::Tensor& x) const { return x.view({queries.size(0), queries.size(1), rows.length, x.size(3)}); }
    at::Tensor wide(const at::Tensor& x) const { return x.to(attention_sum_type(x.scalar_type())); }

    at::Tensor scores() const  // (B, H, R, T)
    {
        auto s = by_heads(at::matmul(grouped(wide(queries) * settings.scale), wide(keys).transpose(2, 3)));
        if (mask.defined()) s.add_(added_mask(mask, s.scalar_type()));
        if (triangular) {
            const auto seen = at::arange(rows.start, rows.end(), s.options().dtype(at::kLong)).unsqueeze(1);
            s.masked_fill_(at::arange(columns.start, columns.end(), s.options().dtype(at::kLong)).unsqueeze(0) > seen, kMinusInfinity);
        }
        return s;
    }
};

/// Number of rows for which the scores of a tile are about 2^20 numbers, which fit a cache; on a device, where each operator is a launch, 2^24.
std::int64_t tile_rows(const at::Tensor& queries, std::int64_t columns)
{
    const auto row = std::max<std::int64_t>(1, queries.size(0) * queries.size(1) * columns);
    return std::max<std::int64_t>(16, (std::int64_t{1} << (queries.is_cpu() ? 20 : 24)) / row);
}

/// Softmax of one rectangle times the values, by the fused kernel: (B, H, R, E) and (B, H, R).
std::pair<at::Tensor, at::Tensor> fused_forward(const AttentionSettings& settings, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                const at::Tensor& mask, bool triangular)
{
    const auto key_heads = k.size(1), members = q.size(1) / key_heads;
    const auto bias = added_mask(mask, q.scalar_type());
    std::vector<at::Tensor> outputs, sums;
    for (std::int64_t g = 0; g < members; ++g) {
        std::optional<at::Tensor> part;
        if (bias.defined()) part = group_member(bias, members > 1 ? key_heads : bias.size(1), g);
        auto [output, sum] =
            at::_scaled_dot_product_flash_attention_for_cpu(members > 1 ? group_member(q, key_heads, g) : q, k, v, 0.0, triangular, part, settings.scale);
        outputs.push_back(output);
        sums.push_back(sum);
    }
    auto output = members > 1 ? at::stack(outputs, 2).flatten(1, 2) : outputs[0];
    auto sum = members > 1 ? at::stack(sums, 2).flatten(1, 2) : sums[0];
    if (bias.defined()) sum = sum.masked_fill(bias.amax(-1) == kMinusInfinity, kMinusInfinity);  // the kernel returns 0 for rows without any key
    return {output, sum};
}

/// The fused backward pass of some heads of some batches at a time, since its results need memory before they are added.
void fused_backward_part(const AttentionSettings& settings, const AttentionQueries& queries, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                         bool triangular, const AttentionGradients& gradients)
{
    const auto key_heads = k.size(1), members = queries.queries.size(1) / key_heads;
    for (std::int64_t g = 0; g < members; ++g) {
        const auto member = [&](const at::Tensor& x) { return members > 1 ? group_member(x, key_heads, g) : x; };
        std::optional<at::Tensor> part;
        if (bias.defined()) part = member(bias);
        const auto sum = members > 1 ? queries.log_sum_exp.unflatten(1, {key_heads, members}).select(2, g) : queries.log_sum_exp;
        const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(member(queries.output_gradient), member(queries.queries), k, v,
                                                                                           member(queries.output), sum, 0.0, triangular, part, settings.scale);
        if (gradients.queries.defined()) member(gradients.queries).add_(dq);
        if (gradients.keys.defined()) gradients.keys.add_(dk);
        if (gradients.values.defined()) gradients.values.add_(dv);
    }
}

void fused_backward(const AttentionSettings& settings, const AttentionQueries& queries, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask,
                    bool triangular, const AttentionGradients& gradients)
{
    constexpr std::int64_t kNumbers = 1 << 16;  // of gradients at a time, but one head of one batch a thread at least
    const auto batches = k.size(0), key_heads = k.size(1), members = queries.queries.size(1) / key_heads, threads = std::int64_t{at::get_num_threads()};
    const auto a_head = queries.queries.size(2) * k.size(3) + k.size(2) * (k.size(3) + v.size(3));
    const auto num_heads = std::clamp(std::max(kNumbers / a_head, threads), std::int64_t{1}, key_heads);
    const auto num_batches = num_heads < key_heads ? 1 : std::clamp(std::max(kNumbers / a_head, threads) / key_heads, std::int64_t{1}, batches);
    const auto bias = added_mask(mask, k.scalar_type());
    for (std::int64_t b = 0; b < batches; b += num_batches) {
        for (std::int64_t h = 0; h < key_heads; h += num_heads) {
            const auto part = [&](const at::Tensor& x, std::int64_t heads_of_one) {
                if (!x.defined()) return x;
                auto piece = x.size(0) > 1 ? x.narrow(0, b, std::min(num_batches, batches - b)) : x;
                return piece.size(1) > 1 ? piece.narrow(1, h * heads_of_one, std::min(num_heads, key_heads - h) * heads_of_one) : piece;
            };
            fused_backward_part(settings,
                                {part(queries.queries, members), part(queries.output_gradient, members), part(queries.output, members),
                                 part(queries.log_sum_exp, members), queries.rows},
                                part(k, 1), part(v, 1), part(bias, members), triangular,
                                {part(gradients.queries, members), part(gradients.keys, 1), part(gradients.values, 1), at::Tensor()});
        }
    }
}

void tile_backward(const ScoreTile& tile, const AttentionQueries& queries, const AttentionGradients& gradients)
{
    const auto do_ = tile.wide(queries.output_gradient);
    auto p = tile.scores().sub_(queries.log_sum_exp.unsqueeze(3)).exp_();
    auto kept = at::Tensor();
    auto weights = p;
    if (tile.settings.dropout > 0) {
        kept = kept_weights(tile.settings, p, tile.rows, tile.columns);
        weights = p * kept;
    }
    if (gradients.values.defined()) gradients.values.add_(at::matmul(tile.grouped(weights).transpose(2, 3), tile.grouped(do_)));
    if (!gradients.queries.defined() && !gradients.keys.defined() && !gradients.mask.defined()) return;

    auto dp = tile.by_heads(at::matmul(tile.grouped(do_), tile.wide(tile.values).transpose(2, 3)));
    if (kept.defined()) dp.mul_(kept);
    const auto ds = dp.sub_((do_ * queries.output).sum(-1, /*keepdim=*/true)).mul_(p);
    if (gradients.mask.defined()) gradients.mask.add_(at::sum_to(ds, gradients.mask.sizes()));
    if (gradients.queries.defined()) {
        gradients.queries.add_(tile.by_heads(at::matmul(tile.grouped(ds), tile.wide(tile.keys))), tile.settings.scale);
    }
    if (gradients.keys.defined()) {
        gradients.keys.add_(at::matmul(tile.grouped(ds).transpose(2, 3), tile.grouped(tile.wide(tile.queries))), tile.settings.scale);
    }
}

at::Tensor narrowed(const at::Tensor& tensor, std::int64_t start, std::int64_t length)
{
    return tensor.defined() ? tensor.narrow(2, start, length) : tensor;
}

}  // namespace

at::ScalarType attention_sum_type(at::ScalarType type)
{
    return type == at::kDouble ? at::kDouble : at::kFloat;
}

AttentionSum::AttentionSum(const AttentionSettings& settings, at::Tensor queries, RowRange rows)
    : settings_(settings), queries_(dense_rows(queries)), rows_(rows)
{
}

void AttentionSum::start(std::int64_t value_size)
{
    if (output_.defined()) return;
    const auto options = queries_.options().dtype(attention_sum_type(queries_.scalar_type()));
    // Heads adjacent in memory, as the layers after an attention need them.
    output_ = at::zeros({queries_.size(0), queries_.size(2), queries_.size(1), value_size}, options).transpose(1, 2);
    log_sum_exp_ = at::full({queries_.size(0), queries_.size(1), queries_.size(2)}, kMinusInfinity, options);
}

void AttentionSum::merge(const at::Tensor& output, const at::Tensor& log_sum_exp, std::int64_t row)
{
    const auto rows = output.size(2);
    const auto type = attention_sum_type(queries_.scalar_type());
    if (!output_.defined() && rows == queries_.size(2)) {
        output_ = output.to(type);
        log_sum_exp_ = log_sum_exp.to(type);
        return;
    }
    start(output.size(3));
    auto sum = log_sum_exp_.narrow(2, row, rows);
    const auto weight = at::sigmoid(log_sum_exp - sum).masked_fill_(log_sum_exp == kMinusInfinity, 0);
    output_.narrow(2, row, rows).lerp_(output.to(type), weight.unsqueeze(3));
    sum.copy_(at::logaddexp(sum, log_sum_exp));
}

void AttentionSum::add(const at::Tensor& all_keys, const at::Tensor& all_values, RowRange columns, const at::Tensor& mask, std::int64_t first_masked)
{
    const auto keys = dense_rows(all_keys), values = dense_rows(all_values);
    for (const auto& part : rectangles(rows_, columns, settings_.causal)) {
        const bool fused = is_fused(settings_, queries_, values, false);
        for (const auto& slice : row_slices(part, fused ? part.rows : tile_rows(queries_, part.columns))) {
            const auto q = queries_.narrow(2, slice.row, slice.rows);
            const auto k = keys.narrow(2, slice.column, slice.columns), v = values.narrow(2, slice.column, slice.columns);
            const auto bias = mask_part(mask, slice, columns.start + slice.column - first_masked);
            if (fused) {
                const auto [output, sum] = fused_forward(settings_, q, k, v, bias, slice.triangular);
                merge(output, sum, slice.row);
                continue;
            }
            const ScoreTile tile{settings_,       q, k, v, bias, {rows_.start + slice.row, slice.rows}, {columns.start + slice.column, slice.columns},
                                 slice.triangular};
            auto s = tile.scores();
            const auto sum = at::logsumexp(s, -1);
            s.sub_(sum.masked_fill(sum == kMinusInfinity, 0).unsqueeze(3)).exp_();
            if (settings_.dropout > 0) s.mul_(kept_weights(settings_, s, tile.rows, tile.columns));
            merge(tile.by_heads(at::matmul(tile.grouped(s), tile.wide(v))), sum, slice.row);
        }
    }
}

AttentionOutput AttentionSum::finish(std::int64_t value_size)
{
    start(value_size);
    return {output_, log_sum_exp_};
}

AttentionQueries AttentionQueries::narrow(std::int64_t row, std::int64_t length) const
{
    return {queries.narrow(2, row, length),
            output_gradient.narrow(2, row, length),
            output.narrow(2, row, length),
            log_sum_exp.narrow(2, row, length),
            {rows.start + row, length}};
}

void add_attention_gradients(const AttentionSettings& settings, const AttentionQueries& queries, const at::Tensor& all_keys, const at::Tensor& all_values,
                             RowRange columns, const at::Tensor& mask, std::int64_t first_masked, const AttentionGradients& gradients)
{
    constexpr std::int64_t kFusedRows = 2048;  // limits the size of the kernel's results for the queries
    const auto keys = dense_rows(all_keys), values = dense_rows(all_values);
    const bool fused = is_fused(settings, queries.queries, values, gradients.mask.defined());
    for (const auto& part : rectangles(queries.rows, columns, settings.causal)) {
        // A triangle is not cut for the fused kernel, which skips its empty half.
        const auto length = fused ? part.triangular ? part.rows : kFusedRows : tile_rows(queries.queries, part.columns);
        for (const auto& slice : row_slices(part, length)) {
            const auto tile_queries = queries.narrow(slice.row, slice.rows);
            const auto k = keys.narrow(2, slice.column, slice.columns), v = values.narrow(2, slice.column, slice.columns);
            const auto bias = mask_part(mask, slice, columns.start + slice.column - first_masked);
            const AttentionGradients tile_gradients{narrowed(gradients.queries, slice.row, slice.rows), narrowed(gradients.keys, slice.column, slice.columns),
                                                    narrowed(gradients.values, slice.column, slice.columns),
                                                    mask_part(gradients.mask, slice, columns.start + slice.column - first_masked)};
            if (fused) {
                fused_backward(settings, tile_queries, k, v, bias, slice.triangular, tile_gradients);
            } else {
                tile_backward({settings, tile_queries.queries, k, v, bias, tile_queries.rows, {columns.start + slice.column, slice.columns}, slice.triangular},
                              tile_queries, tile_gradients);
            }
        }
    }
}

}  // namespace meshard
