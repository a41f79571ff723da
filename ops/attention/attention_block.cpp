// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention_block.h"

#include "ops/attention/piece_kernel.h"
#include "sharding/ranks/parallel_for.h"

#include <ATen/ATen.h>
#include <ATen/SDPBackend.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace meshard {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// A rectangle of a block of scores, in rows and columns of the block.
struct Rectangle {
    std::int64_t row = 0, rows = 0, column = 0, columns = 0;
    bool triangular = false;  ///< square, and row i attends to columns 0 to i only
};

/// The parts of rows x columns that are not fully masked: those beyond the diagonal of a causal attention are left out.
std::vector<Rectangle> rectangles(RowRange rows, RowRange columns, bool causal)
{
    if (rows.length == 0 || columns.length == 0) return {};
    if (!causal) return {{0, rows.length, 0, columns.length, false}};
    std::vector<Rectangle> parts;
    const auto before = std::min(columns.end(), rows.start) - columns.start;  // number of keys to which all rows attend
    if (before > 0) parts.push_back({0, rows.length, 0, before, false});
    const auto begin = std::max(columns.start, rows.start), end = std::min(columns.end(), rows.end());
    if (begin < end) {
        parts.push_back({begin - rows.start, end - begin, begin - columns.start, end - begin, true});
        if (end < rows.end())
            parts.push_back({end - rows.start, rows.end() - end, begin - columns.start, end - begin, false});
    }
    return parts;
}

/// Cuts a rectangle into slices of at most `length` rows. A slice of a triangle has only the columns to which its rows
/// attend, and is not a triangle.
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

/// The mask's entries for a rectangle, whose columns start at `column` of the mask.
at::Tensor mask_part(const at::Tensor& mask, const Rectangle& part, std::int64_t column)
{
    if (!mask.defined()) return mask;
    auto tile = mask;
    if (tile.size(2) > 1) tile = tile.narrow(2, part.row, part.rows);
    if (tile.size(3) > 1) tile = tile.narrow(3, column, part.columns);
    return tile;
}

std::int64_t memory_of(const at::Tensor& tensor)
{
    return static_cast<std::int64_t>(tensor.storage().nbytes() / tensor.itemsize());
}

/// Returns whether LibTorch would use cuDNN: if the GPU and the shapes allow it, and the program has not switched it
/// off.
bool prefers_cudnn(const AttentionSettings& settings, const at::Tensor& queries, const at::Tensor& keys,
                   const at::Tensor& values, const at::Tensor& mask)
{
    const bool is_half = queries.scalar_type() == at::kHalf || queries.scalar_type() == at::kBFloat16;
    if (queries.is_cpu() || !is_half || mask.defined() ||
        std::min({queries.numel(), keys.numel(), values.numel()}) == 0)
        return false;
    const auto choice =
        at::_fused_sdp_choice(queries, keys, values, std::nullopt, 0.0, /*is_causal=*/false, settings.scale,
                              /*enable_gqa=*/queries.size(1) != keys.size(1));
    return choice == static_cast<std::int64_t>(at::SDPBackend::cudnn_attention);
}

/// The kernel for all pieces of keys to which these queries attend.
PieceKernel piece_kernel(const AttentionSettings& settings, const at::Tensor& queries, const at::Tensor& keys,
                         const at::Tensor& values, const at::Tensor& mask, bool wants_mask_gradient)
{
    return choose_piece_kernel(
        {queries.device().type(), queries.scalar_type(), queries.size(0), queries.size(1), queries.size(3),
         values.size(3), std::max({memory_of(queries), memory_of(keys), memory_of(values)}),
         mask.defined() ? std::make_optional(mask.scalar_type()) : std::nullopt, settings.dropout > 0,
         wants_mask_gradient, prefers_cudnn(settings, queries, keys, values, mask)});
}

/// The kernel to use for these keys: a causal piece may have a single key left, which cuDNN does not accept.
PieceKernel for_keys(PieceKernel kernel, const at::Tensor& keys)
{
    return kernel == PieceKernel::Cudnn && keys.size(2) == 1 ? PieceKernel::Flash : kernel;
}

at::Tensor dense_rows(const at::Tensor& tensor)
{
    return tensor.size(3) > 1 && tensor.stride(3) != 1 ? tensor.contiguous() : tensor;
}

/// Mixes the bits of x; the finishing step of SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t spread(std::uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/// Dropout factors for (B, H, rows, columns): 0 where a weight is dropped, 1 / (1 - dropout) elsewhere. They depend
/// only on the position in the whole and on the tensor `kept` or the seed that all ranks share.
at::Tensor kept_weights(const AttentionSettings& settings, const at::Tensor& scores, RowRange rows, RowRange columns)
{
    if (settings.kept.defined()) {
        const auto kept = settings.kept.narrow(0, settings.first_batch, scores.size(0))
                              .narrow(1, settings.first_head, scores.size(1));
        const auto part =
            kept.narrow(2, rows.start, rows.length).narrow(3, columns.start, columns.length).to(scores.options());
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
            const auto key =
                spread(spread(spread(static_cast<std::uint64_t>(settings.seed) + kStep) + plane * kStep) + row * kStep);
            auto* out = data + i * columns.length;
            for (std::int64_t j = 0; j < columns.length; ++j) {
                out[j] = spread(key + static_cast<std::uint64_t>(columns.start + j) * kStep) >> 32 >= threshold ? factor
                                                                                                                : 0.0F;
            }
        }
    });
    return kept.to(scores.options());
}

/// A rectangle of scores with its tensors, for code that stores the scores.
struct ScoreTile {
    const AttentionSettings& settings;
    at::Tensor queries, keys, values, mask;  // parts for the rectangle
    RowRange rows, columns;                  // in the whole
    bool triangular = false;

    std::int64_t key_heads() const { return keys.size(1); }

    /// (B, H, R, X) to (B, K, H / K * R, X): the heads that share a key head are concatenated.
    at::Tensor grouped(const at::Tensor& x) const
    {
        return x.reshape(
            {x.size(0), key_heads(), x.size(1) / std::max<std::int64_t>(key_heads(), 1) * x.size(2), x.size(3)});
    }
    at::Tensor by_heads(const at::Tensor& x) const
    {
        return x.view({queries.size(0), queries.size(1), rows.length, x.size(3)});
    }
    at::Tensor wide(const at::Tensor& x) const { return x.to(attention_sum_type(x.scalar_type())); }

    at::Tensor scores() const  // (B, H, R, T)
    {
        auto s = by_heads(at::matmul(grouped(wide(queries) * settings.scale), wide(keys).transpose(2, 3)));
        if (mask.defined()) s.add_(added_mask(mask, s.scalar_type()));
        if (triangular) {
            const auto seen = at::arange(rows.start, rows.end(), s.options().dtype(at::kLong)).unsqueeze(1);
            s.masked_fill_(at::arange(columns.start, columns.end(), s.options().dtype(at::kLong)).unsqueeze(0) > seen,
                           kMinusInfinity);
        }
        return s;
    }
};

/// Number of rows for which a mask of the rectangle has at most 2^27 entries: kernels get their part as a copy.
std::int64_t masked_rows(const at::Tensor& mask, const Rectangle& part)
{
    if (!mask.defined() || mask.size(2) == 1) return part.rows;
    return std::max<std::int64_t>(16, (std::int64_t{1} << 27) /
                                          std::max<std::int64_t>(1, mask.size(0) * mask.size(1) * part.columns));
}

/// Number of rows for which a tile has about 2^20 scores, which fit a cache; 2^24 on a device, where each operator is a
/// launch.
std::int64_t tile_rows(const at::Tensor& queries, std::int64_t columns)
{
    const auto row = std::max<std::int64_t>(1, queries.size(0) * queries.size(1) * columns);
    return std::max<std::int64_t>(16, (std::int64_t{1} << (queries.is_cpu() ? 20 : 24)) / row);
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
    if (gradients.values.defined())
        gradients.values.add_(at::matmul(tile.grouped(weights).transpose(2, 3), tile.grouped(do_)));
    if (!gradients.queries.defined() && !gradients.keys.defined() && !gradients.mask.defined()) return;

    auto dp = tile.by_heads(at::matmul(tile.grouped(do_), tile.wide(tile.values).transpose(2, 3)));
    if (kept.defined()) dp.mul_(kept);
    const auto ds = dp.sub_((do_ * queries.output).sum(-1, /*keepdim=*/true)).mul_(p);
    if (gradients.mask.defined()) gradients.mask.add_(at::sum_to(ds, gradients.mask.sizes()));
    if (gradients.queries.defined()) {
        gradients.queries.add_(tile.by_heads(at::matmul(tile.grouped(ds), tile.wide(tile.keys))), tile.settings.scale);
    }
    if (gradients.keys.defined()) {
        gradients.keys.add_(at::matmul(tile.grouped(ds).transpose(2, 3), tile.grouped(tile.wide(tile.queries))),
                            tile.settings.scale);
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

std::int64_t piece_rows(const at::Tensor& keys, std::int64_t on_cpus)
{
    constexpr std::int64_t kOnDevices = 16384;
    return keys.is_cpu() ? on_cpus : kOnDevices;
}

AttentionSum::AttentionSum(const AttentionSettings& settings, at::Tensor queries, RowRange rows)
    : settings_(settings), queries_(dense_rows(queries)), rows_(rows)
{
}

void AttentionSum::start(std::int64_t value_size)
{
    if (output_.defined()) return;
    const auto options = queries_.options().dtype(attention_sum_type(queries_.scalar_type()));
    // Heads of a row are adjacent in memory, as the layers after an attention need them.
    output_ = at::zeros({queries_.size(0), queries_.size(2), queries_.size(1), value_size}, options).transpose(1, 2);
    log_sum_exp_ = at::full({queries_.size(0), queries_.size(1), queries_.size(2)}, kMinusInfinity, options);
}

void AttentionSum::merge(const at::Tensor& output, const at::Tensor& log_sum_exp, std::int64_t row)
{
    const auto rows = output.size(2);
    const auto type = attention_sum_type(queries_.scalar_type());
    if (!output_.defined() && rows == queries_.size(2)) {
        output_ = output;  // returned as it is if no more keys follow
        log_sum_exp_ = log_sum_exp.to(type);
        return;
    }
    start(output.size(3));
    output_ = output_.to(type);
    auto sum = log_sum_exp_.narrow(2, row, rows);
    const auto weight = at::sigmoid(log_sum_exp - sum).masked_fill_(log_sum_exp == kMinusInfinity, 0);
    output_.narrow(2, row, rows).lerp_(output.to(type), weight.unsqueeze(3));
    sum.copy_(at::logaddexp(sum, log_sum_exp));
}

void AttentionSum::add(const at::Tensor& all_keys, const at::Tensor& all_values, RowRange columns,
                       const at::Tensor& mask, std::int64_t first_masked)
{
    const auto keys = dense_rows(all_keys), values = dense_rows(all_values);
    const auto kernel = piece_kernel(settings_, queries_, keys, values, mask, false);
    for (const auto& part : rectangles(rows_, columns, settings_.causal)) {
        for (const auto& slice : row_slices(part, kernel == PieceKernel::Tiles ? tile_rows(queries_, part.columns)
                                                                               : masked_rows(mask, part))) {
            const auto q = queries_.narrow(2, slice.row, slice.rows);
            const auto k = keys.narrow(2, slice.column, slice.columns),
                       v = values.narrow(2, slice.column, slice.columns);
            const auto bias = mask_part(mask, slice, columns.start + slice.column - first_masked);
            if (kernel != PieceKernel::Tiles) {
                const auto found =
                    attend_to_piece(for_keys(kernel, k), {q, k, v, bias, settings_.scale, slice.triangular});
                merge(found.output, found.log_sum_exp, slice.row);
                continue;
            }
            const ScoreTile tile{settings_,
                                 q,
                                 k,
                                 v,
                                 bias,
                                 {rows_.start + slice.row, slice.rows},
                                 {columns.start + slice.column, slice.columns},
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

void add_attention_gradients(const AttentionSettings& settings, const AttentionQueries& queries,
                             const at::Tensor& all_keys, const at::Tensor& all_values, RowRange columns,
                             const at::Tensor& mask, std::int64_t first_masked, const AttentionGradients& gradients)
{
    const auto keys = dense_rows(all_keys), values = dense_rows(all_values);
    const auto kernel = piece_kernel(settings, queries.queries, keys, values, mask, gradients.mask.defined());
    const auto most_rows = piece_rows(keys, 2048);  // limits the size of a kernel's results for the queries
    for (const auto& part : rectangles(queries.rows, columns, settings.causal)) {
        auto length = std::min(most_rows, masked_rows(mask, part));
        if (part.triangular) length = part.rows;  // kernels skip the empty half of a triangle
        if (kernel == PieceKernel::Tiles) length = tile_rows(queries.queries, part.columns);
        for (const auto& slice : row_slices(part, length)) {
            const auto tile_queries = queries.narrow(slice.row, slice.rows);
            const auto k = keys.narrow(2, slice.column, slice.columns),
                       v = values.narrow(2, slice.column, slice.columns);
            const auto bias = mask_part(mask, slice, columns.start + slice.column - first_masked);
            const AttentionGradients tile_gradients{
                narrowed(gradients.queries, slice.row, slice.rows),
                narrowed(gradients.keys, slice.column, slice.columns),
                narrowed(gradients.values, slice.column, slice.columns),
                mask_part(gradients.mask, slice, columns.start + slice.column - first_masked)};
            if (kernel != PieceKernel::Tiles) {
                add_piece_gradients(for_keys(kernel, k),
                                    {tile_queries.queries, k, v, bias, settings.scale, slice.triangular}, tile_queries,
                                    tile_gradients);
            } else {
                tile_backward({settings,
                               tile_queries.queries,
                               k,
                               v,
                               bias,
                               tile_queries.rows,
                               {columns.start + slice.column, slice.columns},
                               slice.triangular},
                              tile_queries, tile_gradients);
            }
        }
    }
}

}  // namespace meshard
