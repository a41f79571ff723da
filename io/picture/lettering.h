// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/color_map.h"
#include "io/picture/png_writer.h"

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace meshard {

/// The font's file: the first that is there of DejaVu Sans, Liberation Sans and Noto Sans, where distributions put them. Empty without FreeType, without a
/// font, or if FreeType cannot read it: then letters are of dots.
const std::filesystem::path& font_file();

/// Width in pixels of `text`, UTF-8, in letters of `size` pixels an em: capitals are some 0.73 of that high.
std::int32_t text_width(std::string_view text, std::int32_t size);

/// Draws `text`, UTF-8, with smooth edges; its capitals have their top left corner at (x, y). What does not fit is cut off. Without a font, characters
/// other than printable ASCII become '?'. Threads take turns.
void draw_text(Image& image, std::int32_t x, std::int32_t y, std::string_view text, std::int32_t size, Color color);

}  // namespace meshard
