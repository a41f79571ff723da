// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/png_writer.h"

#include <span>
#include <string>

namespace meshard {

/// Whether this build writes GIF files, for which it needs giflib.
bool writes_gif();

/// The bytes of a GIF file that shows pictures of one size one after the other, again and again, in the 255 most
/// frequent of their colours.
/// @param hundredths   of a second for which each picture is shown
/// @throws Error without giflib, or if it cannot write them
std::string gif_of(std::span<const Image> frames, int hundredths);

}  // namespace meshard
