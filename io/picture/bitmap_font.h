// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/png_writer.h"

#include <cstdint>
#include <string_view>

namespace meshard {

/// Width in pixels of `text` at `scale` pixels a dot; each character is 6 dots wide and 9 high, 7 of them above the line.
std::int32_t text_width(std::string_view text, std::int32_t scale);

/// Draws `text` in black with its top left corner at (x, y); what does not fit is cut off. Characters other than printable
/// ASCII become '?'.
void draw_text(Image& image, std::int32_t x, std::int32_t y, std::string_view text, std::int32_t scale);

}  // namespace meshard
