// SPDX-License-Identifier: Apache-2.0
#include "io/picture/bitmap_font.h"

#include <array>

namespace meshard {

namespace {

constexpr std::int32_t glyph_width = 5, glyph_height = 9, advance = 6;

// The characters from space to tilde: 45 dots each, row by row from the top left, the first in the highest bit.
constexpr std::array<std::uint64_t, 95> glyphs{
    0x000000000000, 0x042108401000, 0x0a5280000000, 0x0a57d5f52800, 0x047d1c5f1000, 0x18c888898c00, 0x08a511593400, 0x042200000000, 0x022210820800,
    0x082084222000, 0x00255d520000, 0x00213e420000, 0x000000c22000, 0x00003e000000, 0x000000063000, 0x000888880000, 0x0e8ceb98b800, 0x046108423800,
    0x0e8844447c00, 0x1f110418b800, 0x0232a5f10800, 0x1f878218b800, 0x06443d18b800, 0x1f0888842000, 0x0e8c5d18b800, 0x0e8c5e113000, 0x006300c60000,
    0x006300c22000, 0x022220820800, 0x0007c1f00000, 0x082082222000, 0x0e8844401000, 0x0e8deb783800, 0x0e8c63f8c400, 0x1e8c7d18f800, 0x0e8c2108b800,
    0x1c9463197000, 0x1f843d087c00, 0x1f843d084000, 0x0e8c2f18bc00, 0x118c7f18c400, 0x0e2108423800, 0x071084293000, 0x119531494400, 0x108421087c00,
    0x11dd6b18c400, 0x118e6b38c400, 0x0e8c6318b800, 0x1e8c7d084000, 0x0e8c63593400, 0x1e8c7d494400, 0x0f841c10f800, 0x1f2108421000, 0x118c6318b800,
    0x118c63151000, 0x118c6b5aa800, 0x118a88a8c400, 0x118c54421000, 0x1f0888887c00, 0x0e4210843800, 0x008208208000, 0x0e1084213800, 0x045440000000,
    0x000000007c00, 0x082080000000, 0x000382f8bc00, 0x1085b318f800, 0x0003a108b800, 0x010b6718bc00, 0x0003a3f83800, 0x064a38842000, 0x0003e318bc2e,
    0x1085b318c400, 0x040308423800, 0x020084210944, 0x1084a98a4800, 0x0c2108423800, 0x0006ab58c400, 0x0005b318c400, 0x0003a318b800, 0x0007a318fa10,
    0x0003e318bc21, 0x0005b3084000, 0x0003a0e0f800, 0x084710849800, 0x00046319b400, 0x000463151000, 0x0004635aa800, 0x000454454400, 0x00046318bc2e,
    0x0007c4447c00, 0x022110420800, 0x042108421000, 0x082104422000, 0x00022a200000,
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
