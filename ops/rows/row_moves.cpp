// SPDX-License-Identifier: Apache-2.0
#include "ops/rows/row_moves.h"

#include "ops/rows/on_gpu.h"
#include "sharding/exchange/row_copies.h"
#include "sharding/tensor/with_backward.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace meshard {
namespace {

std::vector<std::int64_t> sizes_with(const at::Tensor& values, std::int64_t num_rows)
{
    auto sizes = values.sizes().vec();
    sizes[0] = num_rows;
    return sizes;
}

at::Tensor zeros_for(const at::Tensor& values, std::int64_t num_rows)
{
    return at::zeros(sizes_with(values, num_rows), values.options().requires_grad(false));
}

std::int64_t row_bytes(const at::Tensor& rows)
{
    return c10::multiply_integers(rows.sizes().slice(1)) * static_cast<std::int64_t>(rows.element_size());
}

/// Calls `move(executor, from, to, words)`, where `words` is the number of words in a row of the two GPU tensors.
template <class Move>
void move_on_gpu(const at::Tensor& from, at::Tensor& to, const Move& move)
{
    const auto bytes = row_bytes(from), word = word_bytes(bytes, from.const_data_ptr(), to.const_data_ptr());
    const auto in_words = [&](const auto& executor, auto* null) {
        using Word = std::remove_pointer_t<decltype(null)>;
        move(executor, static_cast<const Word*>(from.const_data_ptr()), static_cast<Word*>(to.mutable_data_ptr()),
             bytes / word);
    };
    on_gpu(from, [&](const auto& executor) {
        switch (word) {
        case 8:
            return in_words(executor, static_cast<std::uint64_t*>(nullptr));
        case 4:
            return in_words(executor, static_cast<std::uint32_t*>(nullptr));
        case 2:
            return in_words(executor, static_cast<std::uint16_t*>(nullptr));
        default:
            return in_words(executor, static_cast<std::uint8_t*>(nullptr));
        }
    });
}

at::Tensor packed_on_gpu(const at::Tensor& rows, const at::Tensor& index)
{
    auto packed = at::empty(sizes_with(rows, index.size(0)), rows.options());
    move_on_gpu(rows, packed, [&](const auto& executor, const auto* from, auto* to, std::int64_t words) {
        pack_rows(executor, from, index.const_data_ptr<std::int64_t>(), index.size(0), words, to);
    });
    return packed;
}

at::Tensor unpacked_on_gpu(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows)
{
    auto rows = zeros_for(values, num_rows);
    move_on_gpu(values, rows, [&](const auto& executor, const auto* from, auto* to, std::int64_t words) {
        unpack_rows(executor, from, index.const_data_ptr<std::int64_t>(), index.size(0), words, to);
    });
    return rows;
}

at::Tensor summed_on_gpu(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows)
{
    const auto type = values.scalar_type();
    // Sums of narrow types are rounded once; the order of integers does not matter.
    if (type != at::kFloat && type != at::kDouble) {
        if (values.is_floating_point()) return summed_on_gpu(values.to(at::kFloat), index, num_rows).to(type);
        return zeros_for(values, num_rows).index_put_({index}, values, /*accumulate=*/true);
    }
    // The indices of each row's values, in their order.
    const auto places = at::argsort(index, /*stable=*/true, 0, /*descending=*/false);
    const auto offsets = at::searchsorted(index.index_select(0, places), at::arange(num_rows + 1, index.options()));
    auto sums = zeros_for(values, num_rows);
    const auto channels = c10::multiply_integers(values.sizes().slice(1));
    const auto add = [&](const auto& executor, const auto* packed, auto* rows) {
        add_packed_rows(executor, packed, offsets.const_data_ptr<std::int64_t>(), places.const_data_ptr<std::int64_t>(),
                        num_rows, channels, rows);
    };
    on_gpu(values, [&](const auto& executor) {
        if (type == at::kDouble)
            add(executor, values.const_data_ptr<double>(), sums.mutable_data_ptr<double>());
        else
            add(executor, values.const_data_ptr<float>(), sums.mutable_data_ptr<float>());
    });
    return sums;
}

}  // namespace

at::Tensor index_tensor(const std::vector<std::int64_t>& values)
{
    auto index = at::empty({std::ssize(values)}, at::kLong);
    std::ranges::copy(values, index.mutable_data_ptr<std::int64_t>());
    return index;
}

at::Tensor take_rows(const at::Tensor& rows, const at::Tensor& index)
{
    const auto here = index.to(rows.device());
    if (rows.is_cpu()) return take_some_rows(rows, here);
    return with_backward(packed_on_gpu(rows.detach().resolve_conj().resolve_neg().contiguous(), here.contiguous()),
                         rows, "TakeRowsBackward", [here, num_rows = rows.size(0)](const at::Tensor& gradient) {
                             return scatter_rows(gradient, here, num_rows);
                         });
}

at::Tensor scatter_distinct_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows)
{
    const auto here = index.to(values.device());
    if (values.is_cpu()) return zeros_for(values, num_rows).index_copy(0, here, values);
    return with_backward(
        unpacked_on_gpu(values.detach().resolve_conj().resolve_neg().contiguous(), here.contiguous(), num_rows), values,
        "ScatterDistinctRowsBackward", [here](const at::Tensor& gradient) { return take_rows(gradient, here); });
}

at::Tensor scatter_rows(const at::Tensor& values, const at::Tensor& index, std::int64_t num_rows)
{
    const auto here = index.to(values.device());
    if (values.is_cpu()) return scatter_some_rows(values, here, num_rows);
    return with_backward(
        summed_on_gpu(values.detach().resolve_conj().resolve_neg().contiguous(), here.contiguous(), num_rows), values,
        "ScatterRowsBackward", [here](const at::Tensor& gradient) { return take_rows(gradient, here); });
}

}  // namespace meshard
