// SPDX-License-Identifier: Apache-2.0
#include "sharding/exchange/row_copies.h"

#include "partition/error.h"
#include "sharding/ranks/parallel_for.h"
#include "sharding/ranks/type_limits.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

namespace meshard {
namespace {

// The smallest share of the copying for which another thread is used.
constexpr std::int64_t kBytesAThread = std::int64_t{256} << 10;
constexpr std::int64_t kAhead = 16;  // rows that are prefetched before they are copied

void require_index(const char* where, const at::Tensor& index, std::int64_t num_rows)
{
    if (index.dim() != 1 || index.scalar_type() != at::kLong)
        throw InvalidInput("{}: the index must be int64 of one dimension.", where);
    if (!index.is_cpu()) return;  // the kernels of devices check the index themselves
    const auto numbers = index.contiguous();
    const auto* begin = numbers.const_data_ptr<std::int64_t>();
    const auto* outside =
        std::find_if(begin, begin + numbers.numel(), [&](std::int64_t row) { return row < -1 || row >= num_rows; });
    if (outside != begin + numbers.numel()) throw InvalidInput("{}: row {} of {}.", where, *outside, num_rows);
}

/// `kBytes` is the size of a row if known at compile time, else 0.
template <std::int64_t kBytes>
void copy_rows(const char* from, const std::int64_t* index, std::int64_t count, std::int64_t row_bytes, bool fills,
               char* to)
{
    const auto bytes = static_cast<std::size_t>(kBytes > 0 ? kBytes : row_bytes);
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(from + index[i + kAhead] * row_bytes);
        if (index[i] >= 0)
            std::memcpy(to + i * row_bytes, from + index[i] * row_bytes, bytes);
        else if (fills)
            std::memset(to + i * row_bytes, 0, bytes);
    }
}

/// With `fills`, rows of `target` whose index is -1 become zero.
void take_into(at::Tensor& target, const at::Tensor& table, const at::Tensor& index, bool fills)
{
    if (target.numel() == 0) return;
    if (!table.is_cpu()) {
        // Shapes must not depend on the values of the index: the host would have to wait for the device.
        const auto here = index.to(table.device());
        auto shape = std::vector<std::int64_t>(target.dim(), 1);
        shape[0] = here.size(0);
        const auto has_row = here.ge(0).view(shape);
        if (table.size(0) > 0)
            target.copy_(at::where(has_row, table.index_select(0, here.clamp_min(0)),
                                   fills ? at::zeros({}, table.options()) : target));
        else if (fills)
            target.zero_();
        return;
    }
    const auto rows = table.resolve_conj().resolve_neg().contiguous();  // memory is copied, which has no flags
    const auto numbers = index.contiguous();
    const auto count = index.size(0), row_bytes = static_cast<std::int64_t>(target.nbytes()) / count;
    const auto* from = static_cast<const char*>(rows.const_data_ptr());
    auto* to = static_cast<char*>(target.mutable_data_ptr());
    const auto* places = numbers.const_data_ptr<std::int64_t>();
    const auto run = row_bytes == 4     ? copy_rows<4>
                     : row_bytes == 8   ? copy_rows<8>
                     : row_bytes == 16  ? copy_rows<16>
                     : row_bytes == 256 ? copy_rows<256>
                                        : copy_rows<0>;
    at::parallel_for(0, count, std::max<std::int64_t>(1, kBytesAThread / row_bytes),
                     [&](std::int64_t begin, std::int64_t end) {
                         run(from, places + begin, end - begin, row_bytes, fills, to + begin * row_bytes);
                     });
}

at::Tensor taken(const at::Tensor& table, const at::Tensor& index)
{
    auto shape = table.sizes().vec();
    shape[0] = index.size(0);
    auto result = at::empty(shape, table.options().requires_grad(false));
    take_into(result, table, index, true);
    return result;
}

template <class T>
void add_rows(const T* from, const std::int64_t* index, std::int64_t count, std::int64_t width, T* to)
{
    for (std::int64_t i = 0; i < count; ++i) {
        if (i + kAhead < count) __builtin_prefetch(to + index[i + kAhead] * width, 1);
        if (index[i] < 0) continue;
        const T* row = from + i * width;
        T* sum = to + index[i] * width;
        for (std::int64_t c = 0; c < width; ++c) sum[c] += row[c];
    }
}

at::Tensor added(const at::Tensor& rows, const at::Tensor& index, std::int64_t num_rows)
{
    if (const auto wide = sum_type(rows.scalar_type()); wide != rows.scalar_type())
        return added(rows.to(wide), index, num_rows).to(rows.scalar_type());
    auto shape = rows.sizes().vec();
    shape[0] = num_rows;
    auto sums = at::zeros(shape, rows.options().requires_grad(false));
    const bool is_plain = rows.is_cpu() && (rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kDouble);
    if (rows.numel() == 0) return sums;
    if (!is_plain) {
        // Rows with index -1 are added to one extra row, which is cut off. On a GPU index_add_ adds in arbitrary order,
        // index_put_ in the order of the sorted index.
        const auto here = index.to(rows.device());
        ++shape[0];
        auto all = at::zeros(shape, rows.options().requires_grad(false));
        return all.index_put_({at::where(here.ge(0), here, num_rows)}, rows, /*accumulate=*/true)
            .narrow(0, 0, num_rows);
    }
    const auto values = rows.resolve_neg().contiguous();
    const auto numbers = index.contiguous();
    const auto* places = numbers.const_data_ptr<std::int64_t>();
    const auto width = values.numel() / values.size(0);
    if (rows.scalar_type() == at::kFloat)
        add_rows(values.const_data_ptr<float>(), places, values.size(0), width, sums.mutable_data_ptr<float>());
    else
        add_rows(values.const_data_ptr<double>(), places, values.size(0), width, sums.mutable_data_ptr<double>());
    return sums;
}

}  // namespace

at::Tensor take_some_rows(const at::Tensor& table, const at::Tensor& index)
{
    if (table.dim() < 1) throw InvalidInput("take_some_rows: the table has no rows; it is a single number.");
    require_index("take_some_rows", index, table.size(0));
    return with_backward(taken(table.detach(), index), table, "TakeSomeRowsBackward",
                         [index, num_rows = table.size(0)](const at::Tensor& gradient) {
                             return scatter_some_rows(gradient, index, num_rows);
                         });
}

at::Tensor scatter_some_rows(const at::Tensor& rows, const at::Tensor& index, std::int64_t num_rows)
{
    require_index("scatter_some_rows", index, num_rows);
    if (rows.dim() < 1 || rows.size(0) != index.size(0)) {
        throw InvalidInput("scatter_some_rows: {} rows for {} numbers. Pass a row for each.",
                           rows.dim() < 1 ? 0 : rows.size(0), index.size(0));
    }
    return with_backward(added(rows.detach(), index, num_rows), rows, "ScatterSomeRowsBackward",
                         [index](const at::Tensor& gradient) { return take_some_rows(gradient, index); });
}

void take_some_rows_into(at::Tensor& target, const at::Tensor& table, const at::Tensor& index)
{
    require_index("take_some_rows_into", index, table.size(0));
    if (target.size(0) != index.size(0) || target.sizes().slice(1) != table.sizes().slice(1) ||
        target.scalar_type() != table.scalar_type() || !target.is_contiguous()) {
        throw InvalidInput("take_some_rows_into: the target has {} rows for {} numbers, or rows of another "
                           "shape or type. Make it like the rows that are taken.",
                           target.size(0), index.size(0));
    }
    const at::NoGradGuard no_grad;
    take_into(target, table.detach(), index, false);
}

}  // namespace meshard
