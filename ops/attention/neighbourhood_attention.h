// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/window_attention.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>

namespace meshard {

/// The keys of a grid to which a query attends: `size` of them along each axis, rows first, at distances that are
/// multiples of `dilation`.
struct NeighbourhoodWindow {
    std::array<std::int64_t, 2> size{3, 3};
    std::array<std::int64_t, 2> dilation{1, 1};
};

/// softmax(scale * q k^T) v on a grid, where each query attends to the keys in a window around it (Hassani et al. 2023,
/// Neighborhood Attention Transformer; dilated: Hassani and Shi 2022). Along an axis the entries i, i +- dilation, ...
/// form a grid of their own, in which the query at entry i attends to `size` entries from clamp(i - size / 2, 0, length
/// - size) on: at the borders windows are shifted inwards, without padding.
///
/// Queries, keys, values and the result are (B, rows, columns, H, D). Sharded grids may be cut along any dimension but
/// the last, with any extents: ranks receive the keys and values that their queries need, in one message for each cut
/// axis of the grid, and return their gradients in one.
/// @param scale   1 / sqrt(D) unless given
/// @throws InvalidInput for tensors that differ in shape or type, and a window that does not fit the grid
at::Tensor neighbourhood_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                   const NeighbourhoodWindow& window, std::optional<double> scale = std::nullopt);

// --- for its rule ----------------------------------------------------------------------------------------------------

/// One axis of a grid, some of whose queries are computed here; `here` counts entries of the grid, not of its classes
/// of equal remainder by `dilation`.
struct GridAxis {
    AxisWindows here;
    std::int64_t dilation = 1;

    /// First and end of the keys to which the queries from `begin` to `end` - 1 attend; an empty range at `begin` for
    /// no queries.
    std::pair<std::int64_t, std::int64_t> seen(std::int64_t begin, std::int64_t end) const;
};

/// The attention for plain tensors: queries (B, rows.num_queries, columns.num_queries, H, D), keys and values (B,
/// rows.num_keys, columns.num_keys, H, D).
at::Tensor grid_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const std::array<GridAxis, 2>& axes, double scale);

/// The gradients of queries, keys and values.
std::array<at::Tensor, 3> grid_attention_backward(const at::Tensor& gradient, const at::Tensor& queries,
                                                  const at::Tensor& keys, const at::Tensor& values,
                                                  const std::array<GridAxis, 2>& axes, double scale);

}  // namespace meshard
