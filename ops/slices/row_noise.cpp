// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/row_noise.h"

#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace meshard {
namespace {

constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;
constexpr std::int64_t kBatchDim = 0, kRowDim = 1;

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

}  // namespace

template <class T>
void RowDraw::fill(std::int64_t sample, std::int64_t first, std::int64_t count, std::int64_t width, Strides strides, T* out) const
{
    constexpr int kBits = std::numeric_limits<T>::digits;
    constexpr T kUnit = T(1) / static_cast<T>(std::uint64_t(1) << kBits);
    for (std::int64_t t = 0; t < count; ++t) {
        const auto id = ids_.empty() ? first_id_ + first + t : ids_[first + t];
        const auto row = mixed(key_ + kStride * mixed(static_cast<std::uint64_t>(id) * kStride + static_cast<std::uint64_t>(first_sample_ + sample)));
        for (std::int64_t i = 0; i < width; ++i) {
            out[t * strides.row + i * strides.number] = static_cast<T>(mixed(row + kStride * static_cast<std::uint64_t>(i + 1)) >> (64 - kBits)) * kUnit;
        }
    }
}

template void RowDraw::fill(std::int64_t, std::int64_t, std::int64_t, std::int64_t, Strides, float*) const;
template void RowDraw::fill(std::int64_t, std::int64_t, std::int64_t, std::int64_t, Strides, double*) const;

void RowNoise::set_rows(const at::Tensor& points)
{
    rows_ = points.defined() && is_sharded(points) ? spec_of(points) : nullptr;
}

RowDraw RowNoise::next_draw(const at::Tensor& rows)
{
    RowDraw draw;
    draw.key_ = mixed(seed_ + kStride * ++num_draws_);
    if (!is_sharded(rows)) return draw;
    const auto& spec = *spec_of(rows);
    const auto offset = [&](std::int64_t axis) { return axis < 0 ? 0 : spec.axes[axis].offset(spec.device_mesh->coordinate(axis)); };
    const auto axis = spec.axis_of_dim(kRowDim);
    draw.first_sample_ = offset(spec.axis_of_dim(kBatchDim));
    draw.first_id_ = offset(axis);
    if (axis >= 0 && rows_ && rows_->index_map && rows_->axes[axis] == spec.axes[axis] && rows_->index_map->num_owned == local_of(rows).size(kRowDim)) {
        draw.rows_ = rows_;
        draw.ids_ = rows_->index_map->owned();
    }
    return draw;
}

at::Tensor RowNoise::draw(const at::Tensor& like)
{
    const auto draw = next_draw(like);
    const auto& local = is_sharded(like) ? local_of(like) : like;
    const auto batch = local.size(kBatchDim), num_rows = local.size(kRowDim), width = local.numel() / std::max<std::int64_t>(1, batch * num_rows);
    const bool is_double = local.scalar_type() == at::kDouble;
    auto values = at::empty(local.sizes(), is_double ? at::kDouble : at::kFloat);
    const auto fill = [&](auto* out) {
        for (std::int64_t b = 0; b < batch; ++b) draw.fill(b, 0, num_rows, width, {.row = width, .number = 1}, out + b * num_rows * width);
    };
    if (is_double)
        fill(values.mutable_data_ptr<double>());
    else
        fill(values.mutable_data_ptr<float>());
    values = values.to(local.options());
    return is_sharded(like) ? from_local(values, make_spec(spec_of(like)->device_mesh, without_pending(spec_of(like)->axes))) : values;
}

}  // namespace meshard
