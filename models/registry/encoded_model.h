// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/coordinate_encoding_options.h"
#include "models/registry/registry.h"

#include <cstdint>

namespace meshard {

/// Gives a model, of any kind, the waves over its points' places (coordinate_encoding.h) after the other numbers of each point: it must have been made for
/// `num_channels()` more of these. Their parameters join those of the module as `encoding.*`, which is why no model may have a part of that name. Does
/// nothing where the kind is none.
/// @param seed   of the directions of `fourier`
/// @throws InvalidInput as `CoordinateEncoding`, and for a model that has a part `encoding`
void encode_coordinates(Model& model, const CoordinateEncodingOptions& options, std::uint64_t seed);

}  // namespace meshard
