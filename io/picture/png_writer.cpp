// SPDX-License-Identifier: Apache-2.0
#include "io/picture/png_writer.h"

#include "partition/error.h"

#include <string>
#include <string_view>
#include <zlib.h>

namespace meshard {

namespace {

std::string big_endian(std::uint32_t value)
{
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xFF);
    return text;
}

std::string chunk(std::string_view type, std::string_view content)
{
    const std::string body = std::string(type) + std::string(content);
    const auto checksum = ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
    return big_endian(static_cast<std::uint32_t>(content.size())) + body +
           big_endian(static_cast<std::uint32_t>(checksum));
}

}  // namespace

std::string png_of(const Image& image)
{
    const std::size_t row_size = 3 * static_cast<std::size_t>(image.width);
    std::string rows;
    for (std::int32_t y = 0; y < image.height; ++y) {
        rows += '\0';  // no filter
        rows.append(reinterpret_cast<const char*>(image.pixels.data()) + static_cast<std::size_t>(y) * row_size,
                    row_size);
    }
    std::string compressed(::compressBound(rows.size()), '\0');
    uLongf size = compressed.size();
    if (::compress(reinterpret_cast<Bytef*>(compressed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()),
                   rows.size()) != Z_OK)
        throw Error("zlib could not compress the picture; out of memory?");
    compressed.resize(size);

    const std::string header = big_endian(static_cast<std::uint32_t>(image.width)) +
                               big_endian(static_cast<std::uint32_t>(image.height)) +
                               std::string("\x08\x02\x00\x00\x00", 5);
    return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", compressed) + chunk("IEND", "");
}

}  // namespace meshard
