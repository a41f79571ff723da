// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace meshard {

struct ActivationFunction;
class RowDraw;

// Applies LibTorch's functions, as models use them on tensors, to the plain memory of tiles.

/// Whether the function has a parameter besides x; false for null.
bool has_parameter(const ActivationFunction* function);

/// y = f(x); null means gelu, as computed in tile_math.h.
/// @param parameter   parameter of f; null if it has none
template <class T>
void activate(const ActivationFunction* function, const T* parameter, T* y, const T* x, std::int64_t count);

/// Computes y = f(x) and, in place, gradient *= f'(x); adds to the gradient of a learned parameter unless null.
template <class T>
void activate_backward(const ActivationFunction* function, const T* parameter, T* gradient, T* y, const T* x,
                       std::int64_t count, T* parameter_gradient);

/// Identifies the noise of a tile's points.
struct TileNoise {
    const RowDraw* draw = nullptr;  ///< null: no noise
    std::int64_t sample = 0;        ///< index in this rank's batch
    std::int64_t first = 0;         ///< index of the first point among this rank's points of the sample
};

/// Gumbel noise -log(-log(u + 1e-8) + 1e-8) of n points, with uniform u, by row: (num_rows, n).
template <class T>
void gumbel_noise(const TileNoise& noise, std::int64_t num_rows, std::int64_t n, T* rows);

}  // namespace meshard
