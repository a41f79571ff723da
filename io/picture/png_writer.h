// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

/// A picture of 8-bit red, green, blue, row by row from the top left.
struct Image {
    std::int32_t width = 0;
    std::int32_t height = 0;
    std::vector<std::uint8_t> pixels;

    std::uint8_t* at(std::int32_t x, std::int32_t y)
    {
        return pixels.data() +
               3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x));
    }
};

/// The bytes of a PNG file. @throws Error if they cannot be compressed
std::string png_of(const Image& image);

}  // namespace meshard
