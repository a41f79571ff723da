// SPDX-License-Identifier: Apache-2.0
#include "io/picture/rasterizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace meshard {

Rasterizer::Bytes Rasterizer::to_bytes(Color color)
{
    Bytes bytes{};
    for (int i = 0; i < 3; ++i)
        bytes[i] = static_cast<std::uint8_t>(std::lround(255 * std::clamp(color[i], 0.0F, 1.0F)));
    return bytes;
}

Rasterizer::Rasterizer(std::int32_t width, std::int32_t height)
    : width_(width * factor), height_(height * factor),
      depths_(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_),
              std::numeric_limits<float>::infinity()),
      colors_(depths_.size(), Bytes{255, 255, 255})
{
}

void Rasterizer::set(std::size_t pixel, float depth, Bytes color)
{
    if (!(depth < depths_[pixel] || (depth == depths_[pixel] && color < colors_[pixel]))) return;
    depths_[pixel] = depth;
    colors_[pixel] = color;
}

void Rasterizer::draw_dot(ScreenPoint at, float radius, Color color)
{
    const float cx = at.x * factor, cy = at.y * factor, r = radius * factor;
    if (!(cx > -r && cy > -r && cx < static_cast<float>(width_) + r && cy < static_cast<float>(height_) + r)) return;
    for (auto py = static_cast<std::int32_t>(std::max(0.0F, cy - r));
         py < std::min(height_, static_cast<std::int32_t>(cy + r) + 1); ++py)
        for (auto px = static_cast<std::int32_t>(std::max(0.0F, cx - r));
             px < std::min(width_, static_cast<std::int32_t>(cx + r) + 1); ++px) {
            const float dx = static_cast<float>(px) + 0.5F - cx, dy = static_cast<float>(py) + 0.5F - cy;
            const std::size_t pixel =
                static_cast<std::size_t>(py) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(px);
            if (dx * dx + dy * dy <= r * r) set(pixel, at.depth, to_bytes(color));
        }
}

std::vector<std::byte> Rasterizer::layer() const
{
    const auto depths = std::as_bytes(std::span(depths_)), colors = std::as_bytes(std::span(colors_));
    std::vector<std::byte> bytes(depths.begin(), depths.end());
    bytes.insert(bytes.end(), colors.begin(), colors.end());
    return bytes;
}

void Rasterizer::add_layer(std::span<const std::byte> layer)
{
    const std::byte* const colors = layer.data() + depths_.size() * sizeof(float);
    for (std::size_t pixel = 0; pixel < depths_.size(); ++pixel) {
        float depth = 0;
        Bytes color{};
        std::memcpy(&depth, layer.data() + pixel * sizeof depth, sizeof depth);
        std::memcpy(color.data(), colors + pixel * sizeof color, sizeof color);
        set(pixel, depth, color);
    }
}

Image Rasterizer::image(Color background) const
{
    const Bytes behind = to_bytes(background);
    Image image{width_ / factor, height_ / factor, {}};
    image.pixels.resize(3 * static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height));
    for (std::int32_t y = 0; y < image.height; ++y)
        for (std::int32_t x = 0; x < image.width; ++x)
            for (int channel = 0; channel < 3; ++channel) {
                int sum = 0;
                for (int i = 0; i < factor * factor; ++i) {
                    const auto pixel =
                        static_cast<std::size_t>(y * factor + i / factor) * static_cast<std::size_t>(width_) +
                        static_cast<std::size_t>(x * factor + i % factor);
                    sum += (std::isinf(depths_[pixel]) ? behind : colors_[pixel])[channel];
                }
                image.at(x, y)[channel] = static_cast<std::uint8_t>(sum / (factor * factor));
            }
    return image;
}

}  // namespace meshard
