// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fused/block_tile.h"
#include "ops/fused/fused_block.h"
#include "ops/fused/tile_math.h"
#include "ops/rows/tile_schedule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <type_traits>
#include <vector>

namespace meshard {

/// The rows of a tile in contiguous points (B, N, ...).
template <class T>
const T* rows_of(const at::Tensor& points, const Tile& tile)
{
    return points.const_data_ptr<T>() + tile.first * points.size(-1);
}

template <class T>
T* rows_to(at::Tensor& points, const Tile& tile)
{
    return points.data_ptr<T>() + tile.first * points.size(-1);
}

/// Returns whether points of this type are converted in a thread's memory to be computed with as T: bfloat16 for float.
template <class T>
bool needs_room(const at::Tensor& points)
{
    return std::is_same_v<T, float> && points.scalar_type() == at::kBFloat16;
}

/// Converts numbers `begin` ... `begin + count - 1` of a tensor in bfloat16 to T in `room`; `pack` is the inverse.
template <class T>
void unpack(const at::Tensor& numbers, std::int64_t begin, std::int64_t count, T* room)
{
    if constexpr (std::is_same_v<T, float>)
        from_bfloat16(room, static_cast<const std::uint16_t*>(numbers.const_data_ptr()) + begin, count);
}

template <class T>
void pack(const T* room, std::int64_t begin, std::int64_t count, at::Tensor& numbers)
{
    if constexpr (std::is_same_v<T, float>)
        to_bfloat16(static_cast<std::uint16_t*>(numbers.mutable_data_ptr()) + begin, room, count);
}

/// A tile's rows for reading: in the tensor, or converted to `room`.
template <class T>
const T* read_rows(const at::Tensor& points, const Tile& tile, T* room)
{
    if (!needs_room<T>(points)) return rows_of<T>(points, tile);
    unpack(points, tile.first * points.size(-1), tile.count * points.size(-1), room);
    return room;
}

/// A tile's rows for writing: in the tensor, or in `room`, from which `write_rows` converts them to the tensor.
template <class T>
T* rows_or_room(at::Tensor& points, const Tile& tile, T* room)
{
    return needs_room<T>(points) ? room : rows_to<T>(points, tile);
}

template <class T>
void write_rows(const T* rows, const Tile& tile, at::Tensor& points)
{
    if (needs_room<T>(points)) pack(rows, tile.first * points.size(-1), tile.count * points.size(-1), points);
}

/// The numbers of a tile's sample in a contiguous tensor (B, ...).
template <class T>
const T* sample_of(const at::Tensor& tensor, const Tile& tile)
{
    return tensor.const_data_ptr<T>() + tile.sample * tensor.stride(0);
}

/// Identifies the noise of a tile, in samples of `num_points` points.
inline TileNoise noise_of(const RowDraw& draw, const Tile& tile, std::int64_t num_points)
{
    return {&draw, tile.sample, tile.first - tile.sample * num_points};
}

/// Converts the defined weights of a block to a list, as autograd functions need it, and back: reads from `next`, and
/// moves it past them.
inline std::vector<at::Tensor> list_of(const BlockWeights<at::Tensor>& weights)
{
    std::vector<at::Tensor> list;
    for (const auto* weight : weights.all()) {
        if (weight->defined()) list.push_back(*weight);
    }
    return list;
}

inline BlockWeights<at::Tensor> weights_from(const at::Tensor*& next, const BlockWeights<at::Tensor>& like)
{
    return like.map([&](const at::Tensor& weight) { return weight.defined() ? *next++ : at::Tensor(); });
}

inline BlockWeights<at::Tensor> contiguous(const BlockWeights<at::Tensor>& weights)
{
    return weights.map([](const at::Tensor& weight) { return weight.defined() ? weight.contiguous() : weight; });
}

/// Pointers to a block's weights, which the tensors keep alive.
template <class T>
typename BlockTile<T>::Weights pointers_to(const BlockWeights<at::Tensor>& weights)
{
    return weights.map(
        [](const at::Tensor& weight) { return weight.defined() ? weight.const_data_ptr<T>() : nullptr; });
}

/// An MLP's weights in one list: its two layers' and the activation's parameter, which is empty if it has none.
inline std::vector<at::Tensor> weights_of(const FusedMlp& mlp)
{
    return {mlp.hidden, mlp.hidden_bias, mlp.out, mlp.out_bias,
            mlp.parameter.defined() ? mlp.parameter : mlp.hidden.new_empty({0})};
}
inline constexpr std::size_t kNumMlpWeights = 5;

/// Pointers to an MLP's weights.
template <class T>
typename MlpTile<T>::Weights mlp_pointers(const std::vector<at::Tensor>& weights)
{
    const auto pointer = [&](std::size_t i) { return weights[i].const_data_ptr<T>(); };
    return {pointer(0), pointer(1), pointer(2), pointer(3), pointer(4)};
}

inline std::vector<at::Tensor> all_contiguous(const std::vector<at::Tensor>& tensors)
{
    std::vector<at::Tensor> contiguous;
    for (const auto& tensor : tensors) contiguous.push_back(tensor.contiguous());
    return contiguous;
}

/// Copies the gradients of all defined weights to tensors of their shapes.
template <class T>
std::vector<at::Tensor> tensors_of(const BlockGradients<T>& gradients, const BlockWeights<at::Tensor>& weights)
{
    std::vector<at::Tensor> tensors;
    const auto from = gradients.all();
    const auto of = weights.all();
    for (std::size_t i = 0; i < of.size(); ++i) {
        if (!of[i]->defined()) continue;
        tensors.push_back(at::empty_like(*of[i]));
        std::copy_n(*from[i], of[i]->numel(), tensors.back().template data_ptr<T>());
    }
    return tensors;
}

}  // namespace meshard
