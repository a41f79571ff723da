// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/color_map.h"
#include "io/picture/png_writer.h"

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace meshard {

/// The font's file: the first existing one of DejaVu Sans, Liberation Sans and Noto Sans in the folders of common
/// distributions. Empty without FreeType, without a font, or if FreeType cannot read it: then letters are made of dots.
const std::filesystem::path& font_file();

/// Width in pixels of the UTF-8 `text` at `size` pixels for each em; capitals are about 0.73 em high.
std::int32_t text_width(std::string_view text, std::int32_t size);

/// Draws the UTF-8 `text` with smooth edges; its capitals have their top left corner at (x, y). Parts outside the image
/// are cut off. Without a font, characters other than printable ASCII become '?'. Thread-safe, one call at a time.
void draw_text(Image& image, std::int32_t x, std::int32_t y, std::string_view text, std::int32_t size, Color color);

}  // namespace meshard
