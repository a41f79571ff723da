// SPDX-License-Identifier: Apache-2.0
#include "io/picture/render.h"

#include "io/bytes/atomic_file.h"
#include "io/picture/color_map.h"
#include "io/picture/lettering.h"
#include "io/picture/outer_surface.h"
#include "io/picture/png_writer.h"
#include "io/picture/rasterizer.h"
#include "partition/error.h"
#include "partition/mesh/vector_algebra.h"
#include "partition/nearest_name.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace meshard {

namespace {

constexpr std::array<std::pair<std::string_view, View>, 4> view_names{
    {{"iso", View::Iso}, {"side", View::Side}, {"front", View::Front}, {"top", View::Top}}};
constexpr Color plain{0.72F, 0.74F, 0.78F}, not_a_number{0.9F, 0, 0.9F};
constexpr std::size_t max_categories = 20;  // more different values are drawn as a range
constexpr std::int32_t margin = 24, header_height = 56, legend_width = 150;
// Sizes of letters, in pixels for each em: the first one that fits is used.
constexpr std::array title_sizes{26, 20, 15, 11}, label_sizes{17, 14, 12, 10};

/// Colours around the mesh.
struct Paper {
    Color ground, ink;
};

Paper paper_of(Theme theme)
{
    return theme == Theme::Dark ? Paper{{0.11F, 0.11F, 0.12F}, {0.9F, 0.9F, 0.9F}}
                                : Paper{{1, 1, 1}, {0.12F, 0.12F, 0.12F}};
}

Vector3 normalized(const Vector3& a)
{
    const double length = norm(a);
    return length > 0 ? Vector3{a[0] / length, a[1] / length, a[2] / length} : a;
}

/// Directions of the picture: to the right, up, and towards the eye.
struct Camera {
    Vector3 right, up, toward;
};

Camera camera_from(Vector3 toward, Vector3 up)
{
    toward = normalized(toward);
    const Vector3 right = normalized(cross(up, toward));
    return {right, cross(toward, right), toward};
}

/// @param side   -1 to look along +y, 1 to look along -y
Camera camera_of(View view, double side)
{
    switch (view) {
    case View::Side:
        return camera_from({0, side, 0}, {0, 0, 1});
    case View::Front:
        return camera_from({-1, 0, 0}, {0, 0, 1});
    case View::Top:
        return camera_from({0, 0, 1}, {0, 1, 0});
    case View::Iso:
        break;
    }
    return camera_from({-0.55, 0.85 * side, 0.5}, {0, 0, 1});
}

/// The mapping from values to colours.
struct Coloring {
    bool is_plain = true;
    bool is_categorical = false;
    std::vector<double> categories;
    double low = 0, high = 1;
    bool is_diverging = false;
    std::array<bool, 2> is_clipped{};  // some values are below low, above high

    Color color(double value) const
    {
        if (std::isnan(value)) return not_a_number;
        if (is_categorical) return categorical_color(std::ranges::lower_bound(categories, value) - categories.begin());
        if (!(high > low)) return color_of_part(value < low ? 0 : value > high ? 1 : 0.5);
        if (std::isinf(value)) return color_of_part(value < 0 ? 0 : 1);
        return color_of_part((value / 2 - low / 2) / (high / 2 - low / 2));  // the whole range may be beyond a double
    }
    /// The colour of a position in the range, 0 to 1.
    Color color_of_part(double part) const { return is_diverging ? diverging_color(part) : sequential_color(part); }
};

const DataArray& find_color_array(const Mesh& mesh, const std::string& name, bool& on_cells)
{
    const DataArray* on_cell = find_array(mesh.cell_data, name);
    on_cells = on_cell != nullptr;
    if (on_cells) return *on_cell;
    if (const DataArray* on_point = find_array(mesh.point_data, name)) return *on_point;

    std::vector<std::string> names;
    std::string list;
    for (const auto* group : {&mesh.cell_data, &mesh.point_data})
        for (const DataArray& array : *group) {
            names.push_back(array.name());
            list += (list.empty() ? "'" : ", '") + array.name() + "'";
        }
    throw InvalidInput("render_mesh: there is no cell or point array '{}'. {}{}", name,
                       list.empty() ? "The mesh has none at all." : "There are " + list + ".", suggestion(name, names));
}

/// Returns the index of a component, or -1 for the magnitude of a vector, or the value itself.
std::int32_t find_component(const DataArray& array, const std::string& component)
{
    if (component.empty() || component == "magnitude") return array.num_components() == 1 ? 0 : -1;
    for (std::int32_t i = 0; i < array.num_components(); ++i) {
        const bool is_named =
            static_cast<std::size_t>(i) < array.component_names.size() && array.component_names[i] == component;
        const bool is_axis = array.num_components() <= 3 && component == std::string(1, "xyz"[std::min(i, 2)]);
        if (is_named || is_axis || component == std::to_string(i)) return i;
    }
    throw InvalidInput(
        "render_mesh: array '{}' has no component '{}'; it has {}, numbered from 0 (x, y, z for up to three).",
        array.name(), component, array.num_components());
}

std::vector<double> color_values(const DataArray& array, std::int32_t component)
{
    std::vector<double> values(array.num_rows());
    for (std::int64_t row = 0; row < array.num_rows(); ++row) {
        if (component >= 0) {
            values[row] = array.value(row, component);
            continue;
        }
        for (std::int32_t i = 0; i < array.num_components(); ++i)
            values[row] = std::hypot(values[row], array.value(row, i), 0.0);  // of two numbers it asks for glibc 2.35
    }
    return values;
}

/// The value that each point has of the first of its cells; NaN for a point of none.
std::vector<double> values_of_points(const Mesh& mesh, const std::vector<double>& of_cells)
{
    std::vector<double> values(mesh.num_points(), std::numeric_limits<double>::quiet_NaN());
    for (auto cell = mesh.num_cells() - 1; cell >= 0; --cell)
        for (const auto point : mesh.cells.row(cell)) values[point] = of_cells[cell];
    return values;
}

/// Content to draw of a piece: triangles, or the points of a mesh that has no surface; and the values for the colours,
/// one for each cell or for each point (dots: for each point).
struct Scene {
    std::vector<Vector3> points;
    std::vector<SurfaceTriangle> triangles;
    std::vector<bool> is_drawn;  // for each point
    std::vector<double> values;
    bool values_on_cells = false;
    bool is_integer = false;  // whether the values are integers
};

Scene make_scene(const Mesh& mesh, const RenderOptions& options)
{
    Scene scene;
    scene.points.resize(mesh.num_points());
    for (std::int64_t i = 0; i < mesh.num_points(); ++i)
        scene.points[i] = {mesh.points.value(i, 0), mesh.points.value(i, 1), mesh.points.value(i, 2)};
    scene.triangles = outer_surface(mesh);
    scene.is_drawn.assign(scene.points.size(), scene.triangles.empty());
    for (const SurfaceTriangle& triangle : scene.triangles)
        for (const std::int32_t point : triangle.points) scene.is_drawn[point] = true;
    for (std::size_t i = 0; i < scene.points.size(); ++i)
        for (const double value : scene.points[i])
            if (!std::isfinite(value)) scene.is_drawn[i] = false;
    if (options.color_by.empty()) return scene;
    const DataArray& array = find_color_array(mesh, options.color_by, scene.values_on_cells);
    if (array.type() == ScalarType::String)
        throw InvalidInput("render_mesh: array '{}' holds strings, which have no colours.", array.name());
    scene.values = color_values(array, find_component(array, options.component));
    if (scene.values_on_cells && scene.triangles.empty()) {
        scene.values = values_of_points(mesh, scene.values);
        scene.values_on_cells = false;
    }
    scene.is_integer =
        array.num_components() == 1 && array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64;
    return scene;
}

/// The visible values, not in order.
std::vector<double> visible_values(const Scene& scene)
{
    std::vector<double> seen;
    if (scene.values_on_cells)
        for (const SurfaceTriangle& triangle : scene.triangles) seen.push_back(scene.values[triangle.cell]);
    else
        for (std::size_t i = 0; i < scene.values.size(); ++i)
            if (scene.is_drawn[i]) seen.push_back(scene.values[i]);
    return seen;
}

/// The distinct ones of some values, without those that are not finite.
std::vector<ValueCount> counted(std::vector<double> seen)
{
    std::erase_if(seen, [](double value) { return !std::isfinite(value); });
    std::ranges::sort(seen);
    std::vector<ValueCount> counts;
    for (const double value : seen) {
        if (counts.empty() || counts.back().value != value) counts.push_back({value, 0});
        ++counts.back().count;
    }
    return counts;
}

Coloring make_coloring(const PictureGlance& glance, const RenderOptions& options)
{
    Coloring coloring;
    coloring.is_diverging = options.is_diverging;
    coloring.is_plain = glance.numbers.has_values == 0;
    const auto& seen = glance.seen;
    if (glance.numbers.has_fractions == 0 && !options.range && seen.size() <= max_categories) {
        coloring.is_categorical = true;
        for (const ValueCount& count : seen) coloring.categories.push_back(count.value);
    }
    if (options.range) {
        coloring.low = (*options.range)[0];
        coloring.high = (*options.range)[1];
    } else if (!seen.empty()) {
        std::int64_t num_seen = 0;
        for (const ValueCount& count : seen) num_seen += count.count;
        // The value with `place` values below it.
        const auto at = [&](std::int64_t place) {
            auto count = seen.begin();
            for (; place >= count->count; ++count) place -= count->count;
            return count->value;
        };
        const double low = at(num_seen / 200), high = at(num_seen - 1 - num_seen / 200);
        const bool has_outliers = low < high && high - low < 0.5 * (seen.back().value - seen.front().value);
        coloring.low = has_outliers ? low : seen.front().value;
        coloring.high = has_outliers ? high : seen.back().value;
    }
    const auto& has_infinite = glance.numbers.has_infinite;
    coloring.is_clipped = {has_infinite[0] != 0 || (!seen.empty() && seen.front().value < coloring.low),
                           has_infinite[1] != 0 || (!seen.empty() && seen.back().value > coloring.high)};
    return coloring;
}

/// The position of a point as seen by the camera, before it is scaled to the picture: to the right, down, away.
Vector3 seen_at(const Vector3& point, const Camera& camera)
{
    return {dot(point, camera.right), -dot(point, camera.up), -dot(point, camera.toward)};
}

PictureGlance glance_at(const Scene& scene, const RenderOptions& options)
{
    PictureGlance glance;
    auto& numbers = glance.numbers;
    auto seen = visible_values(scene);
    for (const double value : seen)
        if (std::isinf(value)) numbers.has_infinite[value < 0 ? 0 : 1] = 1;
    glance.seen = counted(std::move(seen));
    numbers.has_values = scene.values.empty() ? 0 : 1;
    numbers.has_fractions = numbers.has_values == 1 && !scene.is_integer ? 1 : 0;
    numbers.has_surface = scene.triangles.empty() ? 0 : 1;
    const std::array cameras{camera_of(options.view, -1), camera_of(options.view, 1)};
    for (int side = 0; side < 2; ++side) {
        auto& box = (scene.triangles.empty() ? numbers.dots : numbers.surface)[side];
        for (std::size_t i = 0; i < scene.points.size(); ++i) {
            if (!scene.is_drawn[i]) continue;
            const auto at = seen_at(scene.points[i], cameras[side]);
            for (int k = 0; k < 3; ++k) {
                box.low[k] = std::min(box.low[k], at[k]);
                box.high[k] = std::max(box.high[k], at[k]);
            }
        }
    }
    for (const SurfaceTriangle& triangle : scene.triangles) {
        const auto& [a, b, c] = triangle.points;
        const Vector3 normal = cross(scene.points[b] - scene.points[a], scene.points[c] - scene.points[a]);
        if (!std::isfinite(dot(normal, normal))) continue;
        for (int side = 0; side < 2; ++side) numbers.shown[side] += std::max(0.0, dot(normal, cameras[side].toward));
    }
    return glance;
}

/// The map from the scene to the picture.
struct Projection {
    Camera camera;
    double scale = 1;
    // Centre of the visible content, and the position of that centre in the picture, at depth 0.
    Vector3 middle{}, center{};

    ScreenPoint operator()(const Vector3& point) const
    {
        const auto at = seen_at(point, camera);
        const auto placed = [&](int k) { return static_cast<float>(center[k] + (at[k] - middle[k]) * scale); };
        return {placed(0), placed(1), placed(2)};
    }
};

Projection make_projection(const PictureGlance::Numbers& numbers, const RenderOptions& options,
                           std::int32_t right_margin)
{
    // A half model (cut at a symmetry plane) is shown from outside: from the side on which more of its surface faces
    // the viewer.
    const int side = numbers.shown[1] > 1.1 * numbers.shown[0] ? 1 : 0;
    const auto& [low, high] = (numbers.has_surface != 0 ? numbers.surface : numbers.dots)[side];
    const double room_x = std::max(8, options.width - 2 * margin - right_margin);
    const double room_y = std::max(8, options.height - header_height - margin);
    const double width = high[0] - low[0], height = high[1] - low[1], depth = high[2] - low[2];
    const double least = std::max(1e-12 * std::max({width, height, depth}), 1e-300);  // of points on one line of sight
    return {camera_of(options.view, side == 1 ? 1 : -1),
            std::min(room_x / std::max(width, least), room_y / std::max(height, least)),
            {(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, (low[2] + high[2]) / 2},
            {margin + room_x / 2, header_height + room_y / 2, 0}};
}

void draw_scene(Rasterizer& rasterizer, const Scene& scene, const Projection& project, const Coloring& coloring)
{
    const Camera& camera = project.camera;
    const Vector3 light = normalized({camera.toward[0] + 0.5 * camera.up[0] - 0.35 * camera.right[0],
                                      camera.toward[1] + 0.5 * camera.up[1] - 0.35 * camera.right[1],
                                      camera.toward[2] + 0.5 * camera.up[2] - 0.35 * camera.right[2]});
    for (const SurfaceTriangle& triangle : scene.triangles) {
        const auto& [i, j, k] = triangle.points;
        if (!scene.is_drawn[i] || !scene.is_drawn[j] || !scene.is_drawn[k]) continue;
        const Vector3 normal = normalized(cross(scene.points[j] - scene.points[i], scene.points[k] - scene.points[i]));
        const auto shade = static_cast<float>(0.6 + 0.4 * std::abs(dot(normal, light)));  // both sides are lit
        std::array<ScreenPoint, 3> corners{project(scene.points[i]), project(scene.points[j]),
                                           project(scene.points[k])};
        // If both sides of a thin sheet are at the same depth, the one that faces the viewer is visible.
        if (dot(normal, camera.toward) < 0)
            for (ScreenPoint& corner : corners) corner.depth += 0.5F;
        if (scene.values.empty() || scene.values_on_cells) {
            const Color color = scene.values.empty() ? plain : coloring.color(scene.values[triangle.cell]);
            rasterizer.draw_triangle(corners, shade, [&](float, float, float) { return color; });
        } else {
            const double at_i = scene.values[i], at_j = scene.values[j], at_k = scene.values[k];
            rasterizer.draw_triangle(corners, shade, [&](float a, float b, float c) {
                if (coloring.is_categorical) return coloring.color(a >= b && a >= c ? at_i : b >= c ? at_j : at_k);
                return coloring.color(a * at_i + b * at_j + c * at_k);
            });
        }
    }
    if (!scene.triangles.empty()) return;
    const bool has_values = !scene.values.empty() && !scene.values_on_cells;
    for (std::size_t i = 0; i < scene.points.size(); ++i)
        if (scene.is_drawn[i])
            rasterizer.draw_dot(project(scene.points[i]), 1.5F, has_values ? coloring.color(scene.values[i]) : plain);
}

void fill(Image& image, std::int32_t x, std::int32_t y, std::int32_t width, std::int32_t height, Color color)
{
    for (std::int32_t py = std::max(0, y); py < std::min(image.height, y + height); ++py)
        for (std::int32_t px = std::max(0, x); px < std::min(image.width, x + width); ++px)
            for (int i = 0; i < 3; ++i) image.at(px, py)[i] = static_cast<std::uint8_t>(std::lround(255 * color[i]));
}

/// Integers are written whole, as long as there is room for them.
std::string category_text(double value)
{
    return std::abs(value) < 1e12 ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
}

/// Digits that show a tenth of the step between labels, four to nine.
int digits_of_labels(double low, double high, int num_labels)
{
    const double largest = std::max(std::abs(low), std::abs(high)), tenth = (high - low) / (num_labels - 1) / 10;
    if (!(tenth > 0) || !std::isfinite(largest)) return 4;
    return std::clamp(static_cast<int>(std::floor(std::log10(largest)) - std::floor(std::log10(tenth))) + 1, 4, 9);
}

/// A text to the right of the legend's colours; its middle is at `y`.
struct Label {
    std::int32_t y;
    std::string text;
};

/// Draws labels in letters of one size, the largest for which all have room to the right and `height` pixels of their
/// own.
void draw_labels(Image& image, std::int32_t x, std::int32_t height, const std::vector<Label>& labels, Color ink)
{
    const auto fits = [&](std::int32_t size) {
        return size <= height && std::ranges::all_of(labels, [&](const Label& label) {
                   return x + text_width(label.text, size) <= image.width;
               });
    };
    const auto* const found = std::ranges::find_if(label_sizes, fits);
    const auto size = found == label_sizes.end() ? label_sizes.back() : *found;
    const auto half_of_digits = static_cast<std::int32_t>(std::lround(0.36 * size));
    for (const auto& [y, text] : labels) draw_text(image, x, y - half_of_digits, text, size, ink);
}

void draw_categories(Image& image, std::int32_t left, std::int32_t top, const std::vector<double>& categories,
                     Color ink)
{
    const auto count = static_cast<std::int32_t>(categories.size()), room = image.height - top;
    const auto step = std::clamp(room / std::max(1, count), label_sizes.back() + 2, 26);
    const auto num_shown = count * step <= room ? count : std::max(0, room / step - 1);
    const auto height = std::min(18, step - 2);
    std::vector<Label> labels;
    for (std::int32_t i = 0; i < num_shown; ++i) {
        fill(image, left, top + i * step, 22, height, categorical_color(i));
        labels.push_back({top + i * step + height / 2, category_text(categories[i])});
    }
    if (num_shown < count)
        labels.push_back({top + num_shown * step + height / 2, fmt::format("and {} more", count - num_shown)});
    draw_labels(image, left + 30, step, labels, ink);
}

void draw_legend(Image& image, const Coloring& coloring, Color ink)
{
    const std::int32_t left = image.width - legend_width, top = header_height + margin;
    if (coloring.is_categorical) return draw_categories(image, left, top, coloring.categories, ink);
    const std::int32_t height = std::max(8, image.height - top - 2 * margin);
    for (std::int32_t y = 0; y < height; ++y)
        fill(image, left, top + y, 22, 1, coloring.color_of_part(1 - (y + 0.5) / height));
    constexpr int num_labels = 6;
    const int num_digits = digits_of_labels(coloring.low, coloring.high, num_labels);
    std::vector<Label> labels;
    for (int i = 0; i < num_labels; ++i) {
        const double part = static_cast<double>(i) / (num_labels - 1);
        const auto y = static_cast<std::int32_t>(std::lround(top + (1 - part) * (height - 1)));
        fill(image, left + 22, y, 5, 1, ink);
        const auto* const beyond = i == 0 && coloring.is_clipped[0]                ? "<"
                                   : i == num_labels - 1 && coloring.is_clipped[1] ? ">"
                                                                                   : "";
        labels.push_back(
            {y, fmt::format("{}{:.{}g}", beyond, std::lerp(coloring.low, coloring.high, part), num_digits)});
    }
    draw_labels(image, left + 31, height / num_labels, labels, ink);
}

std::string title_of(const RenderOptions& options)
{
    if (!options.title.empty()) return options.title;
    return options.color_by + (options.component.empty() ? "" : " " + options.component);
}

}  // namespace

View view_from_name(std::string_view name)
{
    for (const auto& [known, view] : view_names)
        if (known == name) return view;
    throw InvalidInput("render_mesh: unknown view '{}'; known are iso, side, front and top.", name);
}

void PictureGlance::join(const Numbers& others)
{
    numbers.has_values |= others.has_values;
    numbers.has_fractions |= others.has_fractions;
    for (int end = 0; end < 2; ++end) numbers.has_infinite[end] |= others.has_infinite[end];
    numbers.has_surface |= others.has_surface;
    for (int side = 0; side < 2; ++side) {
        numbers.shown[side] += others.shown[side];
        for (const auto group : {&Numbers::surface, &Numbers::dots})
            for (int k = 0; k < 3; ++k) {
                auto& box = (numbers.*group)[side];
                box.low[k] = std::min(box.low[k], (others.*group)[side].low[k]);
                box.high[k] = std::max(box.high[k], (others.*group)[side].high[k]);
            }
    }
}

void PictureGlance::join(std::span<const ValueCount> others)
{
    if (others.empty()) return;
    seen.insert(seen.end(), others.begin(), others.end());
    std::ranges::sort(seen, {}, &ValueCount::value);
    std::size_t last = 0;
    for (std::size_t i = 1; i < seen.size(); ++i) {
        if (seen[i].value == seen[last].value)
            seen[last].count += seen[i].count;
        else
            seen[++last] = seen[i];
    }
    seen.resize(last + 1);
}

class PicturePainter::Canvas {
public:
    Canvas(const PictureGlance& glance, const RenderOptions& options)
        : coloring_(make_coloring(glance, options)), has_surface_(glance.numbers.has_surface != 0),
          projection_(make_projection(glance.numbers, options, coloring_.is_plain ? 0 : legend_width)),
          rasterizer_(options.width, options.height)
    {
    }

    void draw(const Scene& scene)
    {
        if (has_surface_ && scene.triangles.empty()) return;  // dots are used only if the whole has no surface
        draw_scene(rasterizer_, scene, projection_, coloring_);
    }

    Rasterizer& rasterizer() { return rasterizer_; }

    Image image(const RenderOptions& options, Theme theme) const
    {
        const Paper paper = paper_of(theme);
        Image image = rasterizer_.image(paper.ground);
        const std::string title = title_of(options);
        const auto fits = [&](std::int32_t size) { return text_width(title, size) < options.width - 2 * margin; };
        const auto* const size = std::ranges::find_if(title_sizes, fits);
        draw_text(image, margin, margin, title, size == title_sizes.end() ? title_sizes.back() : *size, paper.ink);
        if (!coloring_.is_plain) draw_legend(image, coloring_, paper.ink);
        return image;
    }

private:
    Coloring coloring_;
    bool has_surface_;
    Projection projection_;
    Rasterizer rasterizer_;
};

PicturePainter::PicturePainter(RenderOptions options) : options_(std::move(options))
{
    for (const std::int32_t size : {options_.width, options_.height})
        if (size < 64 || size > 16384)
            throw InvalidInput("render_mesh: a picture of {} x {} pixels; 64 to 16384 are possible each way.",
                               options_.width, options_.height);
    if (options_.range && !((*options_.range)[0] < (*options_.range)[1]))
        throw InvalidInput("render_mesh: the colours' range from {:.4g} to {:.4g} is empty; give the lower end first.",
                           (*options_.range)[0], (*options_.range)[1]);
}

PicturePainter::~PicturePainter() = default;

PictureGlance PicturePainter::look(const Mesh& piece) const
{
    return glance_at(make_scene(piece, options_), options_);
}

void PicturePainter::begin(const PictureGlance& glance)
{
    canvas_ = std::make_unique<Canvas>(glance, options_);
}

void PicturePainter::draw(const Mesh& piece)
{
    canvas_->draw(make_scene(piece, options_));
}

std::vector<std::byte> PicturePainter::layer() const
{
    return canvas_->rasterizer().layer();
}

void PicturePainter::add_layer(std::span<const std::byte> layer)
{
    canvas_->rasterizer().add_layer(layer);
}

Image PicturePainter::image(Theme theme) const
{
    return canvas_->image(options_, theme);
}

std::string PicturePainter::png(Theme theme) const
{
    return png_of(image(theme));
}

void PicturePainter::save(const std::filesystem::path& path, Theme theme) const
{
    write_file_atomically(path, png(theme));
}

void render_mesh(const Mesh& mesh, const std::filesystem::path& png, const RenderOptions& options)
{
    PicturePainter painter(options);
    painter.paint_whole(mesh);
    painter.save(png);
}

void PicturePainter::paint_whole(const Mesh& mesh)
{
    const Scene scene = make_scene(mesh, options_);
    begin(glance_at(scene, options_));
    canvas_->draw(scene);
}

}  // namespace meshard
