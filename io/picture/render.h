// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "partition/mesh/mesh.h"

namespace meshard {

/// Direction of view, for x downstream, y to the side, z up. For a half model that is cut at y = 0, `Iso` and `Side` look from the other side, with x to the
/// left, if more of the surface faces the viewer there: the picture then shows the outside.
enum class View : std::uint8_t {
    Iso,        ///< from the front, the side and above, x to the right
    Side,       ///< along +y: x to the right, z up
    Front,      ///< along +x: the nose, z up
    Top         ///< from above: x to the right, y up
};

/// @throws InvalidInput that lists iso, side, front and top.
View view_from_name(std::string_view name);

struct RenderOptions {
    std::string color_by;                           ///< cell or point array; empty: plain grey
    std::string component;                          ///< empty: the value, or a vector's magnitude; else x, y, z, 0, 1, ...
    std::optional<std::array<double, 2>> range;     ///< of the colours; else the lowest and highest value seen, without
                                                    ///< the outer 0.5 % on each side where these take up most of the range
    View view = View::Iso;
    std::int32_t width = 1280;
    std::int32_t height = 800;
    std::string title;                              ///< empty: the array's name
};

/// Draws a surface, or the outer surface of a volume, or the points of a cloud, to a PNG file. Needs no display.
///
/// Integer arrays of few values (parts, patches) get a colour each, others a perceptual colour map with a bar; NaN is drawn in
/// magenta. Ghost cells (`vtkGhostType`) are left out.
/// @throws InvalidInput if there is no such array or component, or the size is outside [64, 16384].
/// @throws IoError if the file cannot be written.
void render_mesh(const Mesh& mesh, const std::filesystem::path& png, const RenderOptions& options = {});

}  // namespace meshard
