// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/coordinate_encoding_options.h"
#include "models/registry/registry.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshard {

/// Appends the waves over the positions of its points (coordinate_encoding.h) to the inputs of a model of any kind,
/// which must have been made for `num_channels()` more input channels. The encoding's parameters join those of the
/// module as `encoding.*`, so that no model may have a part of that name. Does nothing if the kind is none.
/// @param seed   seed of the directions of `fourier`
/// @throws InvalidInput as `CoordinateEncoding`, and for a model that has a part `encoding`
void encode_coordinates(Model& model, const CoordinateEncodingOptions& options, std::uint64_t seed);

/// Channels of points that hold whole numbers which stand for kinds of points.
struct CategoryChannels {
    std::int64_t first = 0;
    std::vector<std::vector<double>> values;  ///< the kinds of each channel, from `first` on

    /// Returns points with a channel for each kind in place of these channels, 1 where a point is of it and else 0.
    /// @param x   (..., C), plain or sharded; a point that is NaN is of no kind
    at::Tensor one_hot(const at::Tensor& x) const;
};

/// Tells a model of points, which must have been made for them, the kinds of points in place of the numbers that stand
/// for them.
void encode_categories(Model& model, const CategoryChannels& categories);

}  // namespace meshard
