// SPDX-License-Identifier: Apache-2.0
#include "ops/segment_reduce.h"

#include <ATen/ATen.h>

#include <string>

#include "partition/error.h"

namespace meshard {
namespace {

void require_segments(const char* where, const at::Tensor& values, const at::Tensor& offsets)
{
    const auto entries = values.dim() < 1 ? 0 : values.size(0);
    const bool fits = values.dim() >= 1 && values.is_floating_point() && offsets.dim() == 1 && offsets.scalar_type() == at::kLong && offsets.size(0) >= 1 &&
                      offsets[0].item<std::int64_t>() == 0 && offsets[-1].item<std::int64_t>() == entries &&
                      (offsets.size(0) == 1 || offsets.diff().min().item<std::int64_t>() >= 0);
    if (fits) return;
    throw InvalidInput(std::string(where) + ": " + std::to_string(entries) + " entries of type " + c10::toString(values.scalar_type()) +
                       " do not fit the offsets; expected floating values and int64 offsets that start at 0, never fall and end at the number of entries.");
}

/// The row of each entry.
at::Tensor rows_of_entries(const at::Tensor& offsets)
{
    const auto counts = offsets.diff();
    return at::arange(counts.size(0), offsets.options()).repeat_interleave(counts);
}

at::Tensor sums(const at::Tensor& values, const at::Tensor& offsets)
{
    if (values.size(0) == 0 || offsets.size(0) == 1) {   // keeps the history, for ranks without queries
        auto shape = values.sizes().vec();
        shape[0] = offsets.size(0) - 1;
        return at::zeros(shape, values.options().requires_grad(false)) + values.sum();
    }
    return at::segment_reduce(values.contiguous(), "sum", std::nullopt, std::nullopt, offsets, 0, true);
}

at::Tensor extremes(const at::Tensor& values, const at::Tensor& offsets, bool is_max)
{
    auto shape = values.sizes().vec();
    shape[0] = offsets.size(0) - 1;
    if (values.numel() == 0 || shape[0] == 0) return at::zeros(shape, values.options().requires_grad(false));
    return at::segment_reduce(values.detach().contiguous(), is_max ? "max" : "min", std::nullopt, std::nullopt, offsets, 0, true);
}

/// `per_row`, (rows), as a factor of (rows, ...).
at::Tensor beside(const at::Tensor& per_row, const at::Tensor& like)
{
    std::vector<std::int64_t> shape(like.dim(), 1);
    shape[0] = per_row.size(0);
    return per_row.view(shape);
}

}  // namespace

SegmentResult segment_reduce(const at::Tensor& values, const at::Tensor& offsets, SegmentReduction reduction)
{
    require_segments("segment_reduce", values, offsets);
    const auto counts = offsets.diff();
    if (reduction == SegmentReduction::Sum) return {sums(values, offsets), {}};
    if (reduction == SegmentReduction::Mean) {
        const auto total = sums(values, offsets);
        return {total / beside(counts.clamp_min(1).to(values.scalar_type()), total), {}};
    }
    if (values.numel() == 0) return {sums(values, offsets), at::full_like(sums(values, offsets), -1, at::kLong)};
    const auto rows = rows_of_entries(offsets);
    at::Tensor arguments;
    {
        const at::NoGradGuard no_grad;
        const auto extreme = extremes(values, offsets, reduction == SegmentReduction::Max);
        const auto is_extreme = values.detach().eq(extreme.index_select(0, rows));
        const auto entries = values.size(0);
        // The least entry that is the extreme; NaN is equal to none, and its row keeps the first entry.
        const auto places = beside(at::arange(entries, offsets.options()), values).expand(values.sizes());
        const auto candidates = at::where(is_extreme, places, at::full_like(places, entries));
        const auto first = at::full(extreme.sizes(), entries, offsets.options())
                               .scatter_reduce(0, beside(rows, values).expand(values.sizes()), candidates, "amin");
        const auto starts = beside(offsets.narrow(0, 0, offsets.size(0) - 1), extreme).expand(extreme.sizes());
        arguments = at::where(first.eq(entries), starts, first);
        arguments = at::where(beside(counts, extreme).eq(0).expand(extreme.sizes()), at::full_like(arguments, -1), arguments);
    }
    const auto chosen = values.gather(0, arguments.clamp_min(0));
    return {at::where(arguments.lt(0), at::zeros_like(chosen), chosen), arguments};
}

at::Tensor segment_softmax(const at::Tensor& values, const at::Tensor& offsets)
{
    require_segments("segment_softmax", values, offsets);
    if (values.numel() == 0) return values;
    const auto rows = rows_of_entries(offsets);
    const auto exponents = (values - extremes(values, offsets, true).index_select(0, rows)).exp();
    return exponents / sums(exponents, offsets).index_select(0, rows);
}

}  // namespace meshard
