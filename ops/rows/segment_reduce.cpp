// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/segment_reduce.h"

#include "ops/rows/on_gpu.h"
#include "ops/rows/row_moves.h"
#include "partition/error.h"
#include "sharding/ranks/parallel_for.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <string>

namespace meshard {
namespace {

// The smallest share of the work for which another thread is used.
constexpr std::int64_t kNumbersAThread = std::int64_t{64} << 10;

bool are_offsets(const std::int64_t* offsets, std::int64_t count, std::int64_t entries)
{
    return offsets[0] == 0 && offsets[count - 1] == entries && std::is_sorted(offsets, offsets + count);
}

/// Returns the offsets on the values' device, checked if they are on the host: reading them from a device would make
/// the host wait; there the kernel checks them.
at::Tensor checked_offsets(const char* where, const at::Tensor& values, const at::Tensor& offsets)
{
    const auto entries = values.dim() < 1 ? 0 : values.size(0);
    bool fits = values.dim() >= 1 && values.is_floating_point() && offsets.dim() == 1 &&
                offsets.scalar_type() == at::kLong && offsets.size(0) >= 1;
    if (fits && offsets.is_cpu()) {
        fits = are_offsets(offsets.contiguous().const_data_ptr<std::int64_t>(), offsets.size(0), entries);
    } else if (fits) {
        const auto within =
            at::cat({offsets.narrow(0, 0, 1).eq(0), offsets.narrow(0, -1, 1).eq(entries), offsets.diff().ge(0)});
        at::_assert_async(within.all(), std::string(where) + ": the offsets do not fit the entries.");
    }
    if (fits) return offsets.to(values.device());
    throw InvalidInput("{}: {} entries of type {} do not fit the offsets; expected floating values and "
                       "int64 offsets that start at 0, never fall and end at the number of entries.",
                       where, entries, c10::toString(values.scalar_type()));
}

/// The row of each entry.
at::Tensor rows_of_entries(const at::Tensor& offsets, std::int64_t num_entries)
{
    // The length is passed, so that the host does not wait for the device.
    return at::repeat_interleave(offsets.diff(), std::optional(num_entries));
}

/// Computes the reduction with the kernel, on values without history: sums in the order of the entries, of narrow types
/// in float.
SegmentResult swept_on_gpu(const at::Tensor& values, const at::Tensor& offsets, SegmentSweep kind)
{
    const auto type = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto entries = values.detach().to(type).contiguous(), starts = offsets.contiguous();
    auto shape = values.sizes().vec();
    shape[0] = offsets.size(0) - 1;
    const auto channels = c10::multiply_integers(values.sizes().slice(1));
    auto results = at::empty(shape, entries.options());
    auto arguments = kind == SegmentSweep::Sum ? at::Tensor() : at::empty(shape, starts.options());
    const auto sweep = [&](const auto& executor, const auto* from, auto* to) {
        sweep_segments(executor, from, starts.const_data_ptr<std::int64_t>(), shape[0], channels, kind, to,
                       arguments.defined() ? arguments.mutable_data_ptr<std::int64_t>() : nullptr);
    };
    on_gpu(values, [&](const auto& executor) {
        if (type == at::kDouble)
            sweep(executor, entries.const_data_ptr<double>(), results.mutable_data_ptr<double>());
        else
            sweep(executor, entries.const_data_ptr<float>(), results.mutable_data_ptr<float>());
    });
    return {results.to(values.scalar_type()), arguments};
}

template <class T>
void add_segments(const T* values, const std::int64_t* offsets, std::int64_t num_rows, std::int64_t width, T* sums)
{
    const auto mean_entries = num_rows > 0 ? offsets[num_rows] / num_rows + 1 : 1;
    at::parallel_for(0, num_rows, std::max<std::int64_t>(1, kNumbersAThread / (mean_entries * width)),
                     [&](std::int64_t begin, std::int64_t end) {
                         for (auto row = begin; row < end; ++row) {
                             T* sum = sums + row * width;
                             for (auto e = offsets[row]; e < offsets[row + 1]; ++e) {
                                 for (std::int64_t c = 0; c < width; ++c) sum[c] += values[e * width + c];
                             }
                         }
                     });
}

at::Tensor summed(const at::Tensor& values, const at::Tensor& offsets)
{
    if (const auto wide = sum_type(values.scalar_type()); wide != values.scalar_type())
        return summed(values.to(wide), offsets).to(values.scalar_type());
    auto shape = values.sizes().vec();
    shape[0] = offsets.size(0) - 1;
    auto result = at::zeros(shape, values.options().requires_grad(false));
    if (values.numel() == 0 || result.numel() == 0) return result;
    const auto entries = values.contiguous();
    if (!values.is_cpu()) return swept_on_gpu(values, offsets, SegmentSweep::Sum).values;
    const auto starts = offsets.contiguous();
    const auto* begins = starts.const_data_ptr<std::int64_t>();
    const auto width = entries.numel() / entries.size(0);
    if (entries.scalar_type() == at::kFloat)
        add_segments(entries.const_data_ptr<float>(), begins, shape[0], width, result.mutable_data_ptr<float>());
    else
        add_segments(entries.const_data_ptr<double>(), begins, shape[0], width, result.mutable_data_ptr<double>());
    return result;
}

at::Tensor spread(const at::Tensor& rows, const at::Tensor& offsets, std::int64_t num_entries);

/// (entries, ...) to (rows, ...).
at::Tensor sums(const at::Tensor& values, const at::Tensor& offsets)
{
    return with_backward(
        summed(values.detach(), offsets), values, "SegmentSumBackward",
        [offsets, entries = values.size(0)](const at::Tensor& gradient) { return spread(gradient, offsets, entries); });
}

/// The adjoint of `sums`: copies each row to its entries, (rows, ...) to (entries, ...).
at::Tensor spread(const at::Tensor& rows, const at::Tensor& offsets, std::int64_t num_entries)
{
    return with_backward(take_rows(rows.detach(), rows_of_entries(offsets, num_entries)), rows, "SegmentSpreadBackward",
                         [offsets](const at::Tensor& gradient) { return sums(gradient, offsets); });
}

at::Tensor extremes(const at::Tensor& values, const at::Tensor& offsets, bool is_max)
{
    auto shape = values.sizes().vec();
    shape[0] = offsets.size(0) - 1;
    if (values.numel() == 0 || shape[0] == 0) return at::zeros(shape, values.options().requires_grad(false));
    if (!values.is_cpu()) return swept_on_gpu(values, offsets, is_max ? SegmentSweep::Max : SegmentSweep::Min).values;
    return at::segment_reduce(values.detach().contiguous(), is_max ? "max" : "min", std::nullopt, std::nullopt, offsets,
                              0, true);
}

/// Reshapes `per_row`, (rows), so that it broadcasts to (rows, ...).
at::Tensor beside(const at::Tensor& per_row, const at::Tensor& like)
{
    std::vector<std::int64_t> shape(like.dim(), 1);
    shape[0] = per_row.size(0);
    return per_row.view(shape);
}

/// The first entry of each row that is the extreme, -1 for rows without entries.
at::Tensor extreme_entries(const at::Tensor& values, const at::Tensor& offsets, bool is_max)
{
    const at::NoGradGuard no_grad;
    if (!values.is_cpu())
        return swept_on_gpu(values, offsets, is_max ? SegmentSweep::Max : SegmentSweep::Min).arguments;
    const auto rows = rows_of_entries(offsets, values.size(0));
    const auto extreme = extremes(values, offsets, is_max);
    // A NaN, which equals nothing, is the extreme of its row.
    const auto is_extreme = values.detach().eq(extreme.index_select(0, rows)).logical_or_(values.detach().isnan());
    const auto entries = values.size(0);
    const auto places = beside(at::arange(entries, offsets.options()), values).expand(values.sizes());
    const auto candidates = at::where(is_extreme, places, at::full_like(places, entries));
    const auto first = at::full(extreme.sizes(), entries, offsets.options())
                           .scatter_reduce(0, beside(rows, values).expand(values.sizes()), candidates, "amin");
    return at::where(first.eq(entries), at::full_like(first, -1), first);
}

}  // namespace

SegmentResult segment_reduce(const at::Tensor& values, const at::Tensor& given_offsets, SegmentReduction reduction)
{
    const auto offsets = checked_offsets("segment_reduce", values, given_offsets);
    if (reduction == SegmentReduction::Sum) return {sums(values, offsets), {}};
    if (reduction == SegmentReduction::Mean) {
        const auto total = sums(values.to(sum_type(values.scalar_type())), offsets);
        return {(total / beside(offsets.diff().clamp_min(1).to(total.scalar_type()), total)).to(values.scalar_type()),
                {}};
    }
    if (values.numel() == 0) return {sums(values, offsets), at::full_like(sums(values, offsets), -1, at::kLong)};
    const auto arguments = extreme_entries(values, offsets, reduction == SegmentReduction::Max);
    const auto chosen = values.gather(0, arguments.clamp_min(0));
    return {at::where(arguments.lt(0), at::zeros_like(chosen), chosen), arguments};
}

at::Tensor segment_softmax(const at::Tensor& values, const at::Tensor& given_offsets)
{
    const auto offsets = checked_offsets("segment_softmax", values, given_offsets);
    if (values.numel() == 0) return values;
    const auto exponents = (values - spread(extremes(values, offsets, true), offsets, values.size(0))).exp();
    return exponents / spread(sums(exponents, offsets), offsets, values.size(0));
}

}  // namespace meshard
