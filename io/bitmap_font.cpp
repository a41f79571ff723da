// SPDX-License-Identifier: Apache-2.0
#include "io/bitmap_font.h"

#include <array>

namespace meshard {

namespace {

constexpr std::int32_t glyph_width = 5, glyph_height = 7, advance = 6;

// The characters from space to tilde: 35 dots each, row by row from the top left, the first in the highest bit.
constexpr std::array<std::uint64_t, 95> glyphs{
    0x000000000, 0x108421004, 0x294a00000, 0x295f57d4a, 0x11f4717c4, 0x632222263, 0x22944564d, 0x108800000,
    0x088842082, 0x208210888, 0x009575480, 0x0084f9080, 0x000003088, 0x0000f8000, 0x00000018c, 0x002222200,
    0x3a33ae62e, 0x11842108e, 0x3a211111f, 0x7c441062e, 0x08ca97c42, 0x7e1e0862e, 0x1910f462e, 0x7c2222108,
    0x3a317462e, 0x3a317844c, 0x018c03180, 0x018c03088, 0x088882082, 0x001f07c00, 0x208208888, 0x3a2111004,
    0x3a37ade0e, 0x3a318fe31, 0x7a31f463e, 0x3a308422e, 0x72518c65c, 0x7e10f421f, 0x7e10f4210, 0x3a30bc62f,
    0x4631fc631, 0x38842108e, 0x1c4210a4c, 0x4654c5251, 0x42108421f, 0x4775ac631, 0x4639ace31, 0x3a318c62e,
    0x7a31f4210, 0x3a318d64d, 0x7a31f5251, 0x3e107043e, 0x7c8421084, 0x46318c62e, 0x46318c544, 0x4631ad6aa,
    0x462a22a31, 0x463151084, 0x7c222221f, 0x39084210e, 0x020820820, 0x38421084e, 0x115100000, 0x00000001f,
    0x208200000, 0x000e0be2f, 0x4216cc63e, 0x000e8422e, 0x042d9c62f, 0x000e8fe0e, 0x1928e2108, 0x01f18bc2e,
    0x4216cc631, 0x100c2108e, 0x080610a4c, 0x4212a6292, 0x30842108e, 0x001aad631, 0x0016cc631, 0x000e8c62e,
    0x001e8fa10, 0x000d9bc21, 0x0016cc210, 0x000e8383e, 0x211c42126, 0x00118c66d, 0x00118c544, 0x00118d6aa,
    0x001151151, 0x00118bc2e, 0x001f1111f, 0x088441082, 0x108421084, 0x208411088, 0x0008a8800,
};

}  // namespace

std::int32_t text_width(std::string_view text, std::int32_t scale)
{
    return static_cast<std::int32_t>(text.size()) * advance * scale;
}

void draw_text(Image& image, std::int32_t x, std::int32_t y, std::string_view text, std::int32_t scale)
{
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
        const std::uint64_t glyph = glyphs[static_cast<std::size_t>(c - ' ')];
        const std::int32_t left = x + static_cast<std::int32_t>(i) * advance * scale;
        for (std::int32_t py = 0; py < glyph_height * scale; ++py)
            for (std::int32_t px = 0; px < glyph_width * scale; ++px) {
                const std::int32_t dot = glyph_width * (py / scale) + px / scale;
                if ((glyph >> (glyph_width * glyph_height - 1 - dot) & 1) == 0) continue;
                if (left + px < 0 || left + px >= image.width || y + py < 0 || y + py >= image.height) continue;
                std::uint8_t* pixel = image.at(left + px, y + py);
                pixel[0] = pixel[1] = pixel[2] = 30;
            }
    }
}

}  // namespace meshard
