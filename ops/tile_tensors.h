// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>

#include "ops/block_tile.h"
#include "ops/tile_schedule.h"

namespace meshard {

/// Rows of a tile in points (B, N, ...), contiguous.
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

/// What a tile's sample has in a tensor (B, ...), contiguous.
template <class T>
const T* sample_of(const at::Tensor& tensor, const Tile& tile)
{
    return tensor.const_data_ptr<T>() + tile.sample * tensor.stride(0);
}

/// Pointers to a block's weights, which the tensors hold; null for those it does not have.
template <class T>
typename BlockTile<T>::Weights pointers_to(const std::vector<at::Tensor>& weights)
{
    typename BlockTile<T>::Weights pointers{};
    for (std::size_t i = 0; i < weights.size(); ++i) pointers[i] = weights[i].const_data_ptr<T>();
    return pointers;
}

inline std::vector<at::Tensor> all_contiguous(const std::vector<at::Tensor>& tensors)
{
    std::vector<at::Tensor> contiguous;
    for (const auto& tensor : tensors) contiguous.push_back(tensor.contiguous());
    return contiguous;
}

/// Each weight's gradient in a tensor of its shape.
template <class T>
std::vector<at::Tensor> tensors_of(BlockGradients<T>& gradients, const std::vector<at::Tensor>& weights)
{
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        tensors.push_back(at::empty_like(weights[i]));
        std::copy_n(gradients.of(static_cast<BlockWeight>(i)), weights[i].numel(), tensors.back().template data_ptr<T>());
    }
    return tensors;
}

}  // namespace meshard
