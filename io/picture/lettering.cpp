// SPDX-License-Identifier: Apache-2.0
#include "io/picture/lettering.h"

#include "io/picture/bitmap_font.h"

#include <algorithm>
#include <cmath>
#include <vector>

#ifdef MESHARD_WITH_FREETYPE
#include <array>
#include <ft2build.h>
#include <memory>
#include <mutex>
#include <type_traits>
#include FT_FREETYPE_H
#endif

namespace meshard {

namespace {

constexpr double capital_height = 0.73;  // in ems, as in DejaVu Sans

/// Decodes UTF-8; a byte that is not part of a code point becomes U+FFFD.
std::vector<char32_t> code_points(std::string_view text)
{
    constexpr char32_t unknown = 0xFFFD;
    std::vector<char32_t> points;
    for (std::size_t i = 0; i < text.size();) {
        const auto lead = static_cast<unsigned char>(text[i]);
        const std::size_t length = lead < 0x80            ? 1
                                   : lead >> 5 == 0b110   ? 2
                                   : lead >> 4 == 0b1110  ? 3
                                   : lead >> 3 == 0b11110 ? 4
                                                          : 0;
        char32_t point = length == 1 ? lead : lead & (0x7FU >> length);
        bool is_whole = length > 0 && i + length <= text.size();
        for (std::size_t k = 1; is_whole && k < length; ++k) {
            const auto next = static_cast<unsigned char>(text[i + k]);
            is_whole = next >> 6 == 0b10;
            point = point << 6 | (next & 0x3FU);
        }
        points.push_back(is_whole ? point : unknown);
        i += is_whole ? length : 1;
    }
    return points;
}

void blend(Image& image, std::int32_t x, std::int32_t y, float coverage, Color color)
{
    if (x < 0 || x >= image.width || y < 0 || y >= image.height) return;
    std::uint8_t* const pixel = image.at(x, y);
    for (int i = 0; i < 3; ++i)
        pixel[i] = static_cast<std::uint8_t>(
            std::lround((1 - coverage) * static_cast<float>(pixel[i]) + coverage * 255 * color[i]));
}

#ifdef MESHARD_WITH_FREETYPE

constexpr std::array places{
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",                  // Debian, Ubuntu
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",                // Fedora
    "/usr/share/fonts/dejavu/DejaVuSans.ttf",                           // Alpine, RHEL
    "/usr/share/fonts/TTF/DejaVuSans.ttf",                              // Arch
    "/usr/share/fonts/truetype/liberation/LiberationSans-Regular.ttf",  // Debian, Ubuntu
    "/usr/share/fonts/liberation-sans/LiberationSans-Regular.ttf",      // Fedora
    "/usr/share/fonts/truetype/noto/NotoSans-Regular.ttf",              // Debian, Ubuntu
};

/// FreeType with the font; one for the program.
struct Font {
    std::unique_ptr<std::remove_pointer_t<FT_Library>, decltype(&FT_Done_FreeType)> library{nullptr, FT_Done_FreeType};
    std::unique_ptr<std::remove_pointer_t<FT_Face>, decltype(&FT_Done_Face)> face{nullptr, FT_Done_Face};
    std::filesystem::path file;
    std::mutex in_use;

    Font()
    {
        FT_Library opened = nullptr;
        if (FT_Init_FreeType(&opened) != 0) return;
        library.reset(opened);
        for (const char* const place : places) {
            FT_Face read = nullptr;
            std::error_code error;
            if (!std::filesystem::is_regular_file(place, error) || FT_New_Face(opened, place, 0, &read) != 0) continue;
            face.reset(read);
            if (FT_IS_SCALABLE(read)) {
                file = place;
                return;
            }
            face.reset();
        }
    }
};

Font& font()
{
    static Font one;
    return one;
}

/// Calls `see(glyph, x)` for each drawn letter with its left end. Returns the total width.
template <class See>
std::int32_t walk_letters(FT_Face face, std::string_view text, std::int32_t size, See&& see)
{
    FT_Set_Pixel_Sizes(face, 0, static_cast<FT_UInt>(size));
    FT_Pos x = 0;  // 64ths of a pixel
    for (const char32_t point : code_points(text)) {
        if (FT_Load_Char(face, point, FT_LOAD_RENDER | FT_LOAD_TARGET_LIGHT) != 0) continue;
        see(*face->glyph, static_cast<std::int32_t>((x + 32) / 64));
        x += face->glyph->advance.x;
    }
    return static_cast<std::int32_t>((x + 63) / 64);
}

#endif

std::int32_t pixels_a_dot(std::int32_t size)
{
    return std::max(1, static_cast<std::int32_t>(std::lround(capital_height * size / bitmap_font::capital_height)));
}

}  // namespace

#ifdef MESHARD_WITH_FREETYPE
const std::filesystem::path& font_file()
{
    return font().file;
}
#else
const std::filesystem::path& font_file()
{
    static const std::filesystem::path none;
    return none;
}
#endif

std::int32_t text_width(std::string_view text, std::int32_t size)
{
#ifdef MESHARD_WITH_FREETYPE
    if (const auto& face = font().face) {
        const std::lock_guard lock(font().in_use);
        return walk_letters(face.get(), text, size, [](const FT_GlyphSlotRec&, std::int32_t) {});
    }
#endif
    return static_cast<std::int32_t>(code_points(text).size()) * bitmap_font::advance * pixels_a_dot(size);
}

void draw_text(Image& image, std::int32_t x, std::int32_t y, std::string_view text, std::int32_t size, Color color)
{
#ifdef MESHARD_WITH_FREETYPE
    if (const auto& face = font().face) {
        const std::lock_guard lock(font().in_use);
        const auto baseline = y + static_cast<std::int32_t>(std::lround(capital_height * size));
        walk_letters(face.get(), text, size, [&](const FT_GlyphSlotRec& glyph, std::int32_t left) {
            for (std::int32_t row = 0; row < static_cast<std::int32_t>(glyph.bitmap.rows); ++row)
                for (std::int32_t column = 0; column < static_cast<std::int32_t>(glyph.bitmap.width); ++column) {
                    const float coverage =
                        static_cast<float>(glyph.bitmap.buffer[row * glyph.bitmap.pitch + column]) / 255;
                    blend(image, x + left + glyph.bitmap_left + column, baseline - glyph.bitmap_top + row, coverage,
                          color);
                }
        });
        return;
    }
#endif
    const std::int32_t scale = pixels_a_dot(size);
    std::int32_t left = x;
    for (const char32_t point : code_points(text)) {
        for (std::int32_t row = 0; row < bitmap_font::height * scale; ++row)
            for (std::int32_t column = 0; column < bitmap_font::width * scale; ++column)
                if (bitmap_font::has_dot(point, column / scale, row / scale))
                    blend(image, left + column, y + row, 1, color);
        left += bitmap_font::advance * scale;
    }
}

}  // namespace meshard
