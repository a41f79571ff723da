// SPDX-License-Identifier: Apache-2.0
#include "ops/row_noise.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>
#include <vector>

#include "sharding/shard_tensor.h"

namespace meshard {
namespace {

constexpr std::uint64_t kStride = 0x9E3779B97F4A7C15;
constexpr std::int64_t kRowDim = 1;

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t mixed(std::uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// Global ids of the rows that this rank holds.
std::vector<std::int64_t> ids_of(const at::Tensor& like, const SpecPtr& known)
{
    const auto here = is_sharded(like) ? local_of(like).size(kRowDim) : like.size(kRowDim);
    std::vector<std::int64_t> ids(here);
    const auto axis = is_sharded(like) ? spec_of(like)->axis_of_dim(kRowDim) : -1;
    if (axis < 0) {
        std::iota(ids.begin(), ids.end(), 0);
        return ids;
    }
    const auto& spec = *spec_of(like);
    if (known && known->index_map && known->axes[axis] == spec.axes[axis] && known->index_map->num_owned == here) {
        return {known->index_map->owned().begin(), known->index_map->owned().end()};
    }
    std::iota(ids.begin(), ids.end(), spec.axes[axis].offset(spec.device_mesh->coordinate(axis)));
    return ids;
}

template <class T>
void fill(at::Tensor& values, const std::vector<std::int64_t>& ids, std::uint64_t key)
{
    constexpr int kBits = std::numeric_limits<T>::digits;
    constexpr T kUnit = T(1) / static_cast<T>(std::uint64_t(1) << kBits);
    const auto batch = values.size(0), width = values.numel() / std::max<std::int64_t>(1, batch * values.size(kRowDim));
    auto* out = values.mutable_data_ptr<T>();
    for (std::int64_t b = 0; b < batch; ++b) {
        for (const auto id : ids) {
            const auto row = mixed(key + kStride * mixed(static_cast<std::uint64_t>(id) * kStride + static_cast<std::uint64_t>(b)));
            for (std::int64_t i = 0; i < width; ++i) {
                *out++ = static_cast<T>(mixed(row + kStride * static_cast<std::uint64_t>(i + 1)) >> (64 - kBits)) * kUnit;
            }
        }
    }
}

}  // namespace

void RowNoise::set_rows(const at::Tensor& points)
{
    rows_ = points.defined() && is_sharded(points) ? spec_of(points) : nullptr;
}

at::Tensor RowNoise::draw(const at::Tensor& like)
{
    const auto key = mixed(seed_ + kStride * ++num_draws_);
    const auto ids = ids_of(like, rows_);
    const auto& local = is_sharded(like) ? local_of(like) : like;
    const bool is_double = local.scalar_type() == at::kDouble;
    auto values = at::empty(local.sizes(), is_double ? at::kDouble : at::kFloat);
    if (is_double) fill<double>(values, ids, key);
    else fill<float>(values, ids, key);
    values = values.to(local.options());
    return is_sharded(like) ? from_local(values, make_spec(spec_of(like)->device_mesh, without_pending(spec_of(like)->axes))) : values;
}

}  // namespace meshard
