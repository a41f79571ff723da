// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshard {

/// A standard normal number, by the transform of Box and Muller (1958).
double normal_number(std::uint64_t seed);

/// Standard normal numbers for images (B, channels, rows, columns): each depends only on the seed, the index of the
/// draw, and its sample, channel, row and column in the whole. An image therefore gets the same noise for any sharding,
/// on any number of ranks and on any device; a rank draws that of its own part.
///
/// @param like   plain or sharded along any dimensions; gives shape, device and layout of the result, which is in
///               double precision
at::Tensor grid_noise(const at::Tensor& like, std::uint64_t seed, std::uint64_t draw);

}  // namespace meshard
