// SPDX-License-Identifier: Apache-2.0
#include "ops/slices/row_noise.h"

#include "ops/cuda/row_numbers.h"
#include "ops/rows/on_gpu.h"
#include "partition/error.h"
#include "sharding/memory/device_graph.h"
#include "sharding/tensor/shard_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace meshard {
namespace {

constexpr std::int64_t kBatchDim = 0, kRowDim = 1;

}  // namespace

/// Copies of the rows' ids on the devices that have used them, kept as long as the ids exist.
struct RowDraw::DeviceIds {
    at::Tensor of(const std::shared_ptr<const IndexMap>& map, const at::Device& device)
    {
        std::erase_if(copies, [](const auto& copy) { return copy.map.expired(); });
        for (const auto& copy : copies) {
            if (copy.map.lock() == map && copy.ids.device() == device) return copy.ids;
        }
        const auto owned = map->owned();
        auto ids = at::tensor(at::ArrayRef<std::int64_t>(owned.data(), owned.size()), at::kLong);
        if (!device.is_cpu()) ids = ids.pin_memory();
        return copies.emplace_back(map, ids.to(device, /*non_blocking=*/true)).ids;
    }

    struct Copy {
        std::weak_ptr<const IndexMap> map;
        at::Tensor ids;
    };
    std::vector<Copy> copies;
};

RowNumbers RowDraw::numbers_of(const std::int64_t* ids) const
{
    return {key_, ids, first_id_, first_sample_};
}

template <class T>
void RowDraw::fill(std::int64_t sample, std::int64_t first, std::int64_t count, std::int64_t width, Strides strides,
                   T* out) const
{
    const auto rows = numbers_of(ids_.empty() ? nullptr : ids_.data());
    for (std::int64_t t = 0; t < count; ++t) {
        const auto key = rows.key_of(sample, first + t);
        for (std::int64_t i = 0; i < width; ++i)
            out[t * strides.row + i * strides.number] = RowNumbers::number<T>(key, i);
    }
}

template void RowDraw::fill(std::int64_t, std::int64_t, std::int64_t, std::int64_t, Strides, float*) const;
template void RowDraw::fill(std::int64_t, std::int64_t, std::int64_t, std::int64_t, Strides, double*) const;

RowNoise::RowNoise(std::uint64_t seed) : seed_(seed), device_ids_(std::make_shared<RowDraw::DeviceIds>()) {}

void RowNoise::reseed(std::uint64_t seed)
{
    seed_ = seed;
    num_draws_ = 0;
    rows_ = nullptr;
}

void RowNoise::set_rows(at::TensorList points)
{
    rows_ = nullptr;
    for (const auto& tensor : points) {
        if (!tensor.defined() || !is_sharded(tensor) || !spec_of(tensor)->index_map) continue;
        rows_ = spec_of(tensor);
        return;
    }
}

RowDraw RowNoise::next_draw(const at::Tensor& rows)
{
    if (is_recording()) throw Error("the model draws random numbers, which are others in each step");
    RowDraw draw;
    draw.key_ = mixed_key(seed_, ++num_draws_);
    draw.device_ids_ = device_ids_;
    if (!is_sharded(rows)) return draw;
    const auto& spec = *spec_of(rows);
    const auto offset = [&](std::int64_t axis) {
        return axis < 0 ? 0 : spec.axes[axis].offset(spec.device_mesh->coordinate(axis));
    };
    const auto axis = spec.axis_of_dim(kRowDim);
    draw.first_sample_ = offset(spec.axis_of_dim(kBatchDim));
    draw.first_id_ = offset(axis);
    if (axis >= 0 && rows_ && rows_->index_map && rows_->axes[axis] == spec.axes[axis] &&
        rows_->index_map->num_owned == local_of(rows).size(kRowDim)) {
        draw.map_ = rows_->index_map;
    } else if (axis >= 0 && spec.axes[axis].blocks > 1) {
        draw.map_ = ids_in_blocks(spec.axes[axis], spec.device_mesh->coordinate(axis));
    }
    if (draw.map_) draw.ids_ = draw.map_->owned();
    return draw;
}

const std::shared_ptr<const IndexMap>& RowNoise::ids_in_blocks(const AxisLayout& layout, std::int64_t coordinate)
{
    if (blocks_ && in_blocks_ == layout) return blocks_;
    auto map = std::make_shared<IndexMap>();
    const auto first = layout.offset(coordinate), count = (*layout.extents)[coordinate];
    for (std::int64_t block = 0; block < layout.blocks; ++block)
        for (std::int64_t i = 0; i < count; ++i) map->global_ids.push_back(block * layout.total() + first + i);
    map->num_global = layout.blocks * layout.total();
    map->num_owned = static_cast<std::int32_t>(map->global_ids.size());
    in_blocks_ = layout;
    return blocks_ = std::move(map);
}

at::Tensor RowDraw::numbers(at::IntArrayRef sizes, const at::TensorOptions& options) const
{
    auto values = at::empty(sizes, options.requires_grad(false));
    const auto batch = sizes[kBatchDim], num_rows = sizes[kRowDim],
               width = values.numel() / std::max<std::int64_t>(1, batch * num_rows);
    const auto fill_all = [&](auto* out) {
        if (values.is_cpu()) {
            for (std::int64_t b = 0; b < batch; ++b)
                fill(b, 0, num_rows, width, {.row = width, .number = 1}, out + b * num_rows * width);
            return;
        }
        const auto ids = ids_.empty() ? at::Tensor() : device_ids_->of(map_, values.device());
        on_gpu(values, [&](const auto& executor) {
            draw_numbers(executor, numbers_of(ids.defined() ? ids.const_data_ptr<std::int64_t>() : nullptr), batch,
                         num_rows, width, out);
        });
    };
    if (values.scalar_type() == at::kDouble)
        fill_all(values.mutable_data_ptr<double>());
    else
        fill_all(values.mutable_data_ptr<float>());
    return values;
}

at::Tensor RowNoise::draw(const at::Tensor& like)
{
    const auto draw = next_draw(like);
    const auto& local = is_sharded(like) ? local_of(like) : like;
    const auto values =
        draw.numbers(local.sizes(),
                     local.options().dtype(local.scalar_type() == at::kDouble ? at::kDouble : at::kFloat))
            .to(local.scalar_type());
    return is_sharded(like)
               ? from_local(values, make_spec(spec_of(like)->device_mesh, without_pending(spec_of(like)->axes)))
               : values;
}

}  // namespace meshard
