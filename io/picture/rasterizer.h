// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/color_map.h"
#include "io/picture/png_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// A corner in the picture: x to the right and y down, in pixels; depth grows away from the eye.
struct ScreenPoint {
    float x, y, depth;
};

/// Draws coloured triangles and dots into a picture. The nearest one is visible, and at equal depths the colour whose
/// bytes come first, so that the order does not matter. Draws at twice the size and averages, so that edges are smooth.
class Rasterizer {
public:
    Rasterizer(std::int32_t width, std::int32_t height);

    /// `paint(a, b, c)` returns the colour for barycentric weights; `shade` multiplies it.
    template <class Paint>
    void draw_triangle(const std::array<ScreenPoint, 3>& corners, float shade, Paint&& paint);

    void draw_dot(ScreenPoint at, float radius, Color color);

    Image image(Color background) const;  ///< the background is visible where nothing was drawn

    /// All pixels; `add_layer` merges those of another picture of the same size.
    std::vector<std::byte> layer() const;
    void add_layer(std::span<const std::byte> layer);

private:
    static constexpr std::int32_t factor = 2;

    using Bytes = std::array<std::uint8_t, 3>;

    void set(std::size_t pixel, float depth, Bytes color);
    static Bytes to_bytes(Color color);

    std::int32_t width_, height_;  // size of the enlarged picture
    std::vector<float> depths_;
    std::vector<Bytes> colors_;
};

template <class Paint>
void Rasterizer::draw_triangle(const std::array<ScreenPoint, 3>& corners, float shade, Paint&& paint)
{
    const auto x = [&](int i) { return corners[i].x * factor - 0.5F; };
    const auto y = [&](int i) { return corners[i].y * factor - 0.5F; };
    const float area = (x(1) - x(0)) * (y(2) - y(0)) - (x(2) - x(0)) * (y(1) - y(0));
    if (!(area > 0 || area < 0)) return;
    const auto bounded = [](float value, std::int32_t limit) {
        return static_cast<std::int32_t>(value < 0                           ? 0
                                         : value > static_cast<float>(limit) ? static_cast<float>(limit)
                                                                             : value);
    };
    const std::int32_t left = bounded(std::min({x(0), x(1), x(2)}), width_),
                       top = bounded(std::min({y(0), y(1), y(2)}), height_);
    const std::int32_t right = bounded(std::max({x(0), x(1), x(2)}) + 1, width_ - 1);
    const std::int32_t bottom = bounded(std::max({y(0), y(1), y(2)}) + 1, height_ - 1);
    for (std::int32_t py = top; py <= bottom; ++py)
        for (std::int32_t px = left; px <= right; ++px) {
            const auto fx = static_cast<float>(px), fy = static_cast<float>(py);
            const float b = ((fx - x(0)) * (y(2) - y(0)) - (x(2) - x(0)) * (fy - y(0))) / area;
            const float c = ((x(1) - x(0)) * (fy - y(0)) - (fx - x(0)) * (y(1) - y(0))) / area;
            const float a = 1 - b - c;
            // Extends slightly beyond the edge, so that no background is visible between neighbours.
            constexpr float slack = -1e-4F;
            if (a < slack || b < slack || c < slack) continue;
            const float depth = a * corners[0].depth + b * corners[1].depth + c * corners[2].depth;
            const std::size_t pixel =
                static_cast<std::size_t>(py) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(px);
            if (!(depth <= depths_[pixel])) continue;
            Color color = paint(a, b, c);
            for (float& channel : color) channel *= shade;
            set(pixel, depth, to_bytes(color));
        }
}

}  // namespace meshard
