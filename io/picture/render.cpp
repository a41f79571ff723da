// SPDX-License-Identifier: Apache-2.0
#include "io/picture/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "io/picture/bitmap_font.h"
#include "io/picture/color_map.h"
#include "io/picture/outer_surface.h"
#include "io/picture/png_writer.h"
#include "io/picture/rasterizer.h"
#include "partition/error.h"
#include "partition/nearest_name.h"

namespace meshard {

namespace {

using Vector = std::array<double, 3>;

constexpr std::array<std::pair<std::string_view, View>, 4> view_names{
    {{"iso", View::Iso}, {"side", View::Side}, {"front", View::Front}, {"top", View::Top}}};
constexpr Color white{1, 1, 1}, plain{0.72F, 0.74F, 0.78F}, not_a_number{0.9F, 0, 0.9F};
constexpr std::size_t max_categories = 20;   // more values than that are drawn as a range
constexpr std::int32_t margin = 24, header_height = 56, legend_width = 150;

double dot(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

Vector cross(const Vector& a, const Vector& b)
{
    return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

Vector minus(const Vector& a, const Vector& b) { return {a[0] - b[0], a[1] - b[1], a[2] - b[2]}; }

Vector normalized(const Vector& a)
{
    const double length = std::sqrt(dot(a, a));
    return length > 0 ? Vector{a[0] / length, a[1] / length, a[2] / length} : a;
}

/// Directions of the picture: to the right, up, and towards the eye.
struct Camera {
    Vector right, up, toward;
};

Camera camera_from(Vector toward, Vector up)
{
    toward = normalized(toward);
    const Vector right = normalized(cross(up, toward));
    return {right, cross(toward, right), toward};
}

/// `side` is -1 to look along +y, 1 to look along -y.
Camera camera_of(View view, double side)
{
    switch (view) {
    case View::Side: return camera_from({0, side, 0}, {0, 0, 1});
    case View::Front: return camera_from({-1, 0, 0}, {0, 0, 1});
    case View::Top: return camera_from({0, 0, 1}, {0, 1, 0});
    case View::Iso: break;
    }
    return camera_from({-0.55, 0.85 * side, 0.5}, {0, 0, 1});
}

/// The values that give the colours: one a cell or one a point.
struct Coloring {
    std::vector<double> values;
    bool on_cells = false;
    bool is_categorical = false;
    std::vector<double> categories;
    double low = 0, high = 1;
    bool is_clipped = false;    // some values lie outside low ... high

    bool is_plain() const { return values.empty(); }

    Color color(double value) const
    {
        if (std::isnan(value)) return not_a_number;
        if (is_categorical)
            return categorical_color(std::ranges::lower_bound(categories, value) - categories.begin());
        return sequential_color(high > low ? (value - low) / (high - low) : 0.5);
    }
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
    const std::string nearest = nearest_name(name, names);
    throw InvalidInput("render_mesh: there is no cell or point array '" + name + "'. " +
                       (list.empty() ? "The mesh has none at all." : "There are " + list + ".") +
                       (nearest.empty() ? "" : " Did you mean '" + nearest + "'?"));
}

/// -1: magnitude of a vector, or the value itself.
std::int32_t find_component(const DataArray& array, const std::string& component)
{
    if (component.empty() || component == "magnitude") return array.num_components() == 1 ? 0 : -1;
    for (std::int32_t i = 0; i < array.num_components(); ++i) {
        const bool is_named = static_cast<std::size_t>(i) < array.component_names.size() && array.component_names[i] == component;
        const bool is_axis = array.num_components() <= 3 && component == std::string(1, "xyz"[std::min(i, 2)]);
        if (is_named || is_axis || component == std::to_string(i)) return i;
    }
    throw InvalidInput("render_mesh: array '" + array.name() + "' has no component '" + component + "'; it has " +
                       std::to_string(array.num_components()) + ", numbered from 0 (x, y, z for up to three).");
}

std::vector<double> color_values(const DataArray& array, std::int32_t component)
{
    std::vector<double> values(static_cast<std::size_t>(array.num_rows()));
    for (std::int64_t row = 0; row < array.num_rows(); ++row) {
        if (component >= 0) {
            values[row] = array.value(row, component);
            continue;
        }
        double sum = 0;
        for (std::int32_t i = 0; i < array.num_components(); ++i) sum += array.value(row, i) * array.value(row, i);
        values[row] = std::sqrt(sum);
    }
    return values;
}

/// What is drawn: triangles, or the points of a mesh that has no surface.
struct Scene {
    std::vector<Vector> points;
    std::vector<SurfaceTriangle> triangles;
    std::vector<bool> is_drawn;     // of each point
};

Scene make_scene(const Mesh& mesh)
{
    Scene scene;
    scene.points.resize(static_cast<std::size_t>(mesh.num_points()));
    for (std::int64_t i = 0; i < mesh.num_points(); ++i)
        scene.points[i] = {mesh.points.value(i, 0), mesh.points.value(i, 1), mesh.points.value(i, 2)};
    scene.triangles = outer_surface(mesh);
    scene.is_drawn.assign(scene.points.size(), scene.triangles.empty());
    for (const SurfaceTriangle& triangle : scene.triangles)
        for (const std::int32_t point : triangle.points) scene.is_drawn[point] = true;
    for (std::size_t i = 0; i < scene.points.size(); ++i)
        for (const double value : scene.points[i])
            if (!std::isfinite(value)) scene.is_drawn[i] = false;
    return scene;
}

Coloring make_coloring(const Mesh& mesh, const Scene& scene, const RenderOptions& options)
{
    Coloring coloring;
    if (options.color_by.empty()) return coloring;
    const DataArray& array = find_color_array(mesh, options.color_by, coloring.on_cells);
    if (array.type() == ScalarType::String)
        throw InvalidInput("render_mesh: array '" + array.name() + "' holds strings, which have no colours.");
    coloring.values = color_values(array, find_component(array, options.component));

    std::vector<double> seen;
    if (coloring.on_cells)
        for (const SurfaceTriangle& triangle : scene.triangles) seen.push_back(coloring.values[triangle.cell]);
    else
        for (std::size_t i = 0; i < scene.points.size(); ++i)
            if (scene.is_drawn[i]) seen.push_back(coloring.values[i]);
    const bool is_integer = array.type() != ScalarType::Float32 && array.type() != ScalarType::Float64;
    if (is_integer && array.num_components() == 1 && !options.range) {
        std::set<double> distinct;
        for (const double value : seen)
            if (distinct.insert(value).second && distinct.size() > max_categories) break;
        coloring.is_categorical = distinct.size() <= max_categories;
        coloring.categories.assign(distinct.begin(), distinct.end());
    }
    std::erase_if(seen, [](double value) { return !std::isfinite(value); });
    if (options.range) {
        coloring.low = (*options.range)[0];
        coloring.high = (*options.range)[1];
    } else if (!seen.empty()) {
        std::ranges::sort(seen);
        const std::size_t outer = seen.size() / 200;
        const double low = seen[outer], high = seen[seen.size() - 1 - outer];
        const bool has_outliers = low < high && high - low < 0.5 * (seen.back() - seen.front());
        coloring.low = has_outliers ? low : seen.front();
        coloring.high = has_outliers ? high : seen.back();
    }
    coloring.is_clipped = std::ranges::any_of(seen, [&](double value) { return value < coloring.low || value > coloring.high; });
    return coloring;
}

/// Side from which a half model (cut at a symmetry plane) is drawn: that from which more of its surface faces the viewer, the outside.
double choose_side(const Scene& scene, View view)
{
    double shown_left = 0, shown_right = 0;
    const Vector left = camera_of(view, -1).toward, right = camera_of(view, 1).toward;
    for (const SurfaceTriangle& triangle : scene.triangles) {
        const auto& [a, b, c] = triangle.points;
        const Vector normal = cross(minus(scene.points[b], scene.points[a]), minus(scene.points[c], scene.points[a]));
        if (!std::isfinite(dot(normal, normal))) continue;
        shown_left += std::max(0.0, dot(normal, left));
        shown_right += std::max(0.0, dot(normal, right));
    }
    return shown_right > 1.1 * shown_left ? 1 : -1;
}

std::vector<ScreenPoint> project(const Scene& scene, const Camera& camera, const RenderOptions& options, std::int32_t right_margin)
{
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::array<double, 2> low{infinity, infinity}, high{-infinity, -infinity};
    for (std::size_t i = 0; i < scene.points.size(); ++i) {
        if (!scene.is_drawn[i]) continue;
        const std::array<double, 2> at{dot(scene.points[i], camera.right), -dot(scene.points[i], camera.up)};
        for (int k = 0; k < 2; ++k) {
            low[k] = std::min(low[k], at[k]);
            high[k] = std::max(high[k], at[k]);
        }
    }
    const double room_x = std::max(8, options.width - 2 * margin - right_margin);
    const double room_y = std::max(8, options.height - header_height - margin);
    const double scale = std::min(room_x / std::max(high[0] - low[0], 1e-300), room_y / std::max(high[1] - low[1], 1e-300));
    const double center_x = margin + room_x / 2, center_y = header_height + room_y / 2;
    std::vector<ScreenPoint> projected(scene.points.size());
    for (std::size_t i = 0; i < projected.size(); ++i) {
        const Vector& point = scene.points[i];
        projected[i] = {static_cast<float>(center_x + (dot(point, camera.right) - (low[0] + high[0]) / 2) * scale),
                        static_cast<float>(center_y + (-dot(point, camera.up) - (low[1] + high[1]) / 2) * scale),
                        static_cast<float>(-dot(point, camera.toward) * scale)};
    }
    return projected;
}

void draw_scene(Rasterizer& rasterizer, const Scene& scene, const std::vector<ScreenPoint>& projected, const Camera& camera,
                const Coloring& coloring)
{
    const Vector light = normalized({camera.toward[0] + 0.5 * camera.up[0] - 0.35 * camera.right[0],
                                     camera.toward[1] + 0.5 * camera.up[1] - 0.35 * camera.right[1],
                                     camera.toward[2] + 0.5 * camera.up[2] - 0.35 * camera.right[2]});
    for (const SurfaceTriangle& triangle : scene.triangles) {
        const auto& [i, j, k] = triangle.points;
        if (!scene.is_drawn[i] || !scene.is_drawn[j] || !scene.is_drawn[k]) continue;
        const Vector normal = normalized(cross(minus(scene.points[j], scene.points[i]), minus(scene.points[k], scene.points[i])));
        const auto shade = static_cast<float>(0.6 + 0.4 * std::abs(dot(normal, light)));   // both sides are lit
        std::array<ScreenPoint, 3> corners{projected[i], projected[j], projected[k]};
        // Of the two sides of a thin sheet, the one that faces the viewer is visible.
        if (dot(normal, camera.toward) < 0)
            for (ScreenPoint& corner : corners) corner.depth += 0.5F;
        if (coloring.is_plain() || coloring.on_cells) {
            const Color color = coloring.is_plain() ? plain : coloring.color(coloring.values[triangle.cell]);
            rasterizer.draw_triangle(corners, shade, [&](float, float, float) { return color; });
        } else {
            const double at_i = coloring.values[i], at_j = coloring.values[j], at_k = coloring.values[k];
            rasterizer.draw_triangle(corners, shade, [&](float a, float b, float c) {
                if (coloring.is_categorical) return coloring.color(a >= b && a >= c ? at_i : b >= c ? at_j : at_k);
                return coloring.color(a * at_i + b * at_j + c * at_k);
            });
        }
    }
    if (!scene.triangles.empty()) return;
    for (std::size_t i = 0; i < projected.size(); ++i) {
        if (!scene.is_drawn[i]) continue;
        const bool has_value = !coloring.is_plain() && !coloring.on_cells;
        rasterizer.draw_dot(projected[i], 1.5F, has_value ? coloring.color(coloring.values[i]) : plain);
    }
}

std::string number_text(double value)
{
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.4g", value);
    return text.data();
}

void fill(Image& image, std::int32_t x, std::int32_t y, std::int32_t width, std::int32_t height, Color color)
{
    for (std::int32_t py = std::max(0, y); py < std::min(image.height, y + height); ++py)
        for (std::int32_t px = std::max(0, x); px < std::min(image.width, x + width); ++px)
            for (int i = 0; i < 3; ++i) image.at(px, py)[i] = static_cast<std::uint8_t>(std::lround(255 * color[i]));
}

void draw_legend(Image& image, const Coloring& coloring)
{
    const std::int32_t left = image.width - legend_width, top = header_height + margin;
    if (coloring.is_categorical) {
        for (std::size_t i = 0; i < coloring.categories.size(); ++i) {
            const std::int32_t y = top + static_cast<std::int32_t>(i) * 26;
            fill(image, left, y, 22, 18, categorical_color(static_cast<std::int64_t>(i)));
            draw_text(image, left + 30, y + 2, number_text(coloring.categories[i]), 2);
        }
        return;
    }
    const std::int32_t height = std::max(8, image.height - top - 2 * margin);
    for (std::int32_t y = 0; y < height; ++y)
        fill(image, left, top + y, 22, 1, sequential_color(1 - (y + 0.5) / height));
    constexpr int num_labels = 6;
    for (int i = 0; i < num_labels; ++i) {
        const double part = static_cast<double>(i) / (num_labels - 1);
        const auto y = static_cast<std::int32_t>(std::lround(top + (1 - part) * (height - 1)));
        fill(image, left + 22, y, 5, 1, {0.1F, 0.1F, 0.1F});
        const bool is_end = coloring.is_clipped && (i == 0 || i == num_labels - 1);
        draw_text(image, left + 31, y - 7,
                  (is_end ? i == 0 ? "<" : ">" : "") + number_text(coloring.low + part * (coloring.high - coloring.low)), 2);
    }
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
    throw InvalidInput("render_mesh: unknown view '" + std::string(name) + "'; known are iso, side, front and top.");
}

void render_mesh(const Mesh& mesh, const std::filesystem::path& png, const RenderOptions& options)
{
    for (const std::int32_t size : {options.width, options.height})
        if (size < 64 || size > 16384)
            throw InvalidInput("render_mesh: a picture of " + std::to_string(options.width) + " x " +
                               std::to_string(options.height) + " pixels; 64 to 16384 are possible each way.");
    if (options.range && !((*options.range)[0] < (*options.range)[1]))
        throw InvalidInput("render_mesh: the colours' range from " + number_text((*options.range)[0]) + " to " +
                           number_text((*options.range)[1]) + " is empty; give the lower end first.");
    const Scene scene = make_scene(mesh);
    const Coloring coloring = make_coloring(mesh, scene, options);
    const Camera camera = camera_of(options.view, choose_side(scene, options.view));

    Rasterizer rasterizer(options.width, options.height, white);
    const auto projected = project(scene, camera, options, coloring.is_plain() ? 0 : legend_width);
    draw_scene(rasterizer, scene, projected, camera, coloring);
    Image image = rasterizer.image();
    const std::string title = title_of(options);
    draw_text(image, margin, margin, title, text_width(title, 3) < options.width - 2 * margin ? 3 : 2);
    if (!coloring.is_plain()) draw_legend(image, coloring);
    write_png(png, image);
}

}  // namespace meshard
