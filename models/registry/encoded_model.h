// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/coordinate_encoding_options.h"
#include "models/registry/registry.h"

#include <cstdint>

namespace meshard {

/// Appends the waves over the positions of its points (coordinate_encoding.h) to the inputs of a model of any kind,
/// which must have been made for `num_channels()` more input channels. The encoding's parameters join those of the
/// module as `encoding.*`, so that no model may have a part of that name. Does nothing if the kind is none.
/// @param seed   seed of the directions of `fourier`
/// @throws InvalidInput as `CoordinateEncoding`, and for a model that has a part `encoding`
void encode_coordinates(Model& model, const CoordinateEncodingOptions& options, std::uint64_t seed);

}  // namespace meshard
