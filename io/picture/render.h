// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "io/picture/png_writer.h"
#include "partition/mesh/mesh.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshard {

/// Direction of view, for x downstream, y to the side, z up. For a half model that is cut at y = 0, `Iso` and `Side`
/// look from the other side, with x to the left, if more of the surface faces the viewer there: the picture then shows
/// the outside.
enum class View : std::uint8_t {
    Iso,    ///< from the front, the side and above, x to the right
    Side,   ///< along +y: x to the right, z up
    Front,  ///< along +x: the nose, z up
    Top     ///< from above: x to the right, y up
};

/// @throws InvalidInput that lists iso, side, front and top.
View view_from_name(std::string_view name);

/// Colours around the mesh: dark letters on white, or light ones on a dark ground.
enum class Theme : std::uint8_t { Light, Dark };

struct RenderOptions {
    std::string color_by = {};   ///< cell or point array; empty: plain grey
    std::string component = {};  ///< empty: the value, or a vector's magnitude; else x, y, z, 0, 1, ...
    /// Range of the colours; by default the lowest and highest visible value, without the outer 0.5 % on each side if
    /// these take up most of the range.
    std::optional<std::array<double, 2>> range = {};
    bool is_diverging = false;  ///< use a map with a pale middle of the range, for differences
    View view = View::Iso;
    std::int32_t width = 1280;
    std::int32_t height = 800;
    std::string title = {};  ///< empty: the array's name
};

/// Draws a surface, or the outer surface of a volume, or the points of a cloud, to a PNG file. Needs no display.
///
/// Integer arrays of few values (parts, patches) get a colour each, others a perceptual colour map with a bar; NaN is
/// drawn in magenta. Ghost cells (`vtkGhostType`) are left out.
/// @throws InvalidInput if there is no such array or component, or the size is outside [64, 16384].
/// @throws IoError if the file cannot be written.
void render_mesh(const Mesh& mesh, const std::filesystem::path& png, const RenderOptions& options = {});

/// A value and the number of its visible occurrences.
struct ValueCount {
    double value;
    std::int64_t count;
};

/// Data about a whole mesh that are needed before its first piece is drawn: the merged glances at all of its pieces.
struct PictureGlance {
    struct Box {  // bounds of the visible content: to the right, down, and away from the eye
        static constexpr double infinity = std::numeric_limits<double>::infinity();
        std::array<double, 3> low{infinity, infinity, infinity}, high{-infinity, -infinity, -infinity};
    };
    struct Numbers {
        std::array<Box, 2> surface, dots;  ///< for a camera on either side, as in `View`
        std::array<double, 2> shown{};     ///< visible area
        std::uint8_t has_surface = 0, has_values = 0, has_fractions = 0;
        std::array<std::uint8_t, 2> has_infinite{};  ///< whether a value is minus infinity, infinity
    };

    void join(const Numbers& others);
    void join(std::span<const ValueCount> others);

    Numbers numbers;
    std::vector<ValueCount> seen;  ///< ascending
};

/// Paints the picture of a mesh that is given in pieces: `look` is called for all of them first, then `draw` for each.
/// The picture is that of the whole, for any pieces in any order, if each surface of a piece is a surface of the whole.
/// All pieces must have the array for the colours.
class PicturePainter {
public:
    explicit PicturePainter(RenderOptions options);  ///< @throws InvalidInput as `render_mesh`
    ~PicturePainter();

    PictureGlance look(const Mesh& piece) const;  ///< @throws InvalidInput as `render_mesh`
    void begin(const PictureGlance& glance);      ///< before the first `draw`
    void draw(const Mesh& piece);

    /// The picture so far, for another painter that has begun with the same glance.
    std::vector<std::byte> layer() const;
    void add_layer(std::span<const std::byte> layer);

    /// `look`, `begin` and `draw` for the whole mesh. @throws InvalidInput as `render_mesh`.
    void paint_whole(const Mesh& mesh);
    Image image(Theme theme = Theme::Light) const;
    std::string png(Theme theme = Theme::Light) const;                               ///< the bytes of a PNG file
    void save(const std::filesystem::path& path, Theme theme = Theme::Light) const;  ///< @throws IoError

private:
    class Canvas;

    RenderOptions options_;
    std::unique_ptr<Canvas> canvas_;
};

}  // namespace meshard
