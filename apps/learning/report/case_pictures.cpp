// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/case_pictures.h"

#include "apps/console/console.h"
#include "io/picture/gif_writer.h"
#include "io/picture/render.h"
#include "partition/error.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

namespace meshard {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Bounds {
    std::array<double, 3> low{infinity, infinity, infinity}, high{-infinity, -infinity, -infinity};

    double extent(int axis) const { return high[axis] - low[axis]; }
};

Bounds bounds_of(const Mesh& mesh)
{
    Bounds bounds;
    for (std::int64_t point = 0; point < mesh.num_points(); ++point)
        for (int axis = 0; axis < 3; ++axis) {
            const double at = mesh.points.value(point, axis);
            bounds.low[axis] = std::min(bounds.low[axis], at);
            bounds.high[axis] = std::max(bounds.high[axis], at);
        }
    return bounds;
}

/// Returns the axis along which a mesh has no extent; -1 for none.
int flat_axis(const Bounds& bounds)
{
    constexpr double flat = 1e-6;
    const double largest = std::max({bounds.extent(0), bounds.extent(1), bounds.extent(2)});
    for (const int axis : {2, 1, 0})
        if (bounds.extent(axis) <= flat * largest) return axis;
    return -1;
}

/// Chooses the plane of constant y that shows a volume: 0 if the volume is on both sides of it or ends there (a half
/// model), else the middle.
double plane_of(const Bounds& bounds)
{
    const double inside = 1e-4 * bounds.extent(1);  // half models show the cells that touch the plane
    if (bounds.low[1] > inside || bounds.high[1] < -inside) return (bounds.low[1] + bounds.high[1]) / 2;
    return std::clamp(0.0, bounds.low[1] + inside, bounds.high[1] - inside);
}

/// Marks the cells that a plane does not cross as ghosts, which are not drawn.
DataArray beside_plane(const Mesh& mesh, const PlaneAcross& plane)
{
    std::vector<std::uint8_t> is_beside(mesh.num_cells(), 1);
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        double low = infinity, high = -infinity;
        for (const auto point : mesh.cells.row(cell)) {
            const double at = mesh.points.value(point, plane.axis);
            low = std::min(low, at);
            high = std::max(high, at);
        }
        is_beside[cell] = low <= plane.at && plane.at <= high ? 0 : 1;
    }
    return DataArray::from("vtkGhostType", std::move(is_beside));
}

bool has_solids(const Mesh& mesh)
{
    return std::ranges::any_of(mesh.cell_types, [](std::uint8_t type) { return cell_dimension(type) == 3; });
}

constexpr std::array kViewsAlong{View::Front, View::Side, View::Top};  // x, y and z
constexpr std::string_view kAxes = "xyz";

/// The part of a mesh that is drawn, and the view.
struct Scene {
    View view = View::Iso;
    std::vector<DataArray> marks;
    std::string seen;       // names the part; empty for all
    std::string file_name;  // distinguishes the files of several planes
};

Scene scene_at(const Mesh& mesh, const PlaneAcross& plane)
{
    return {kViewsAlong[plane.axis], {beside_plane(mesh, plane)}, "cells at " + plane.text(), {}};
}

std::vector<Scene> scenes_of(const Mesh& mesh, std::span<const PlaneAcross> planes)
{
    const auto bounds = bounds_of(mesh);
    if (const auto axis = flat_axis(bounds); axis >= 0) return {{kViewsAlong[axis], {}, {}, {}}};
    if (!has_solids(mesh)) return {{}};
    if (planes.empty()) {
        const auto y = plane_of(bounds);
        auto scene = scene_at(mesh, {1, y});
        if (std::abs(y) <= 1e-4 * bounds.extent(1)) scene.seen = "cells at " + PlaneAcross{1, 0}.text();
        return {std::move(scene)};
    }
    std::vector<Scene> scenes;
    for (std::size_t i = 0; i < planes.size(); ++i) {
        const auto& plane = planes[i];
        if (std::ranges::count(planes.first(i), plane) > 0) continue;  // named twice
        const auto low = bounds.low[plane.axis], high = bounds.high[plane.axis];
        if (plane.at < low || plane.at > high) {
            throw InvalidInput(
                "the plane {} lies beside the volume, which reaches from {} = {} to {}. Choose another --plane.",
                plane.text(), kAxes[plane.axis], low, high);
        }
        scenes.push_back(scene_at(mesh, plane));
        scenes.back().file_name = fmt::format("_{}={}", kAxes[plane.axis], plane.at);
    }
    return scenes;
}

/// Draws a field of some states with the same colours, and where points move with the same camera.
class FieldPainter {
public:
    FieldPainter(std::span<const DrawnState> states, const DrawnField& field, std::int32_t width, std::int32_t height)
        : states_(states), field_(field), width_(width), height_(height)
    {
        for (const auto& state : states) {
            const auto truth = number(of(state.truth)),
                       error = number(of(state.predicted) - of(state.truth)).abs().nan_to_num(0, 0, 0);
            ranges_[0] = std::min(ranges_[0], truth.nan_to_num(infinity).min().item<double>());
            ranges_[1] = std::max(ranges_[1], truth.nan_to_num(-infinity).max().item<double>());
            ranges_[2] = std::max(ranges_[2], error.max().item<double>());
        }
    }

    /// The lowest and the highest true number, and the largest error.
    const std::array<double, 3>& ranges() const { return ranges_; }

    /// Returns the field's channels.
    at::Tensor of(const at::Tensor& channels) const { return channels.narrow(1, field_.first, field_.count); }

    /// Returns the glance at all states, where points move.
    std::optional<PictureGlance> camera(const Scene& scene) const
    {
        if (!states_.front().moved) return {};
        const PicturePainter painter(options(scene, {}, {0, 1}, false));
        PictureGlance glance;
        for (const auto& state : states_)
            for (const bool is_moved : {false, true})
                glance.join(painter.look(colored(scene, state, is_moved, of(state.truth))).numbers);
        return glance;
    }

    /// @param name   of what is drawn: true, predicted or error
    std::unique_ptr<PicturePainter> paint(const Scene& scene, const std::optional<PictureGlance>& camera,
                                          const DrawnState& state, const std::string& name, const at::Tensor& values,
                                          std::array<double, 2> range, bool is_diverging) const
    {
        if (!(range[1] > range[0])) range[1] = range[0] + std::max(1e-12, std::abs(range[0]) * 1e-6);
        const auto title = field_.name + (field_.count > 1 ? " (length) " : " ") + name +
                           (state.when.empty() ? "" : ", " + state.when);
        auto painter = std::make_unique<PicturePainter>(options(scene, title, range, is_diverging));
        const auto mesh = colored(scene, state, name == "predicted", values);
        if (camera) {
            painter->begin(*camera);
            painter->draw(mesh);
        } else {
            painter->paint_whole(mesh);
        }
        return painter;
    }

private:
    RenderOptions options(const Scene& scene, const std::string& title, std::array<double, 2> range,
                          bool is_diverging) const
    {
        return {.color_by = "value",
                .component = {},
                .range = range,
                .is_diverging = is_diverging,
                .view = scene.view,
                .width = width_,
                .height = height_,
                .title = title};
    }
    at::Tensor number(const at::Tensor& values) const
    {
        return field_.count > 1 ? values.norm(2, 1) : values.squeeze(1);
    }

    /// Returns the mesh of a state with these values as its only array but for marks of what is not drawn.
    Mesh colored(const Scene& scene, const DrawnState& state, bool is_moved, const at::Tensor& values) const
    {
        auto mesh = state.mesh;
        if (is_moved && state.moved) mesh.points = *state.moved;
        mesh.cell_data = scene.marks;
        mesh.point_data.clear();
        arrays_at(mesh, field_.on_cells).push_back(DataArray::from("value", values_on_host<float>(number(values)), 1));
        return mesh;
    }

    std::span<const DrawnState> states_;
    const DrawnField& field_;
    std::int32_t width_, height_;
    std::array<double, 3> ranges_{infinity, -infinity, 1e-30};
};

/// Puts a picture to the right of another one of its size.
Image beside(const Image& left, const Image& right)
{
    Image both{left.width + right.width, left.height, {}};
    const auto line = 3 * static_cast<std::ptrdiff_t>(left.width);
    for (std::ptrdiff_t row = 0; row < left.height; ++row) {
        for (const auto* half : {&left, &right}) {
            const auto begin = half->pixels.begin() + row * line;
            both.pixels.insert(both.pixels.end(), begin, begin + line);
        }
    }
    return both;
}

}  // namespace

PlaneAcross PlaneAcross::from_text(const std::string& text)
{
    const auto axis = text.size() > 2 && text[1] == '=' ? kAxes.find(text[0]) : std::string_view::npos;
    PlaneAcross plane;
    const auto* const end = text.data() + text.size();
    if (axis == std::string_view::npos ||
        std::from_chars(text.data() + 2, end, plane.at) != std::from_chars_result{end, std::errc()} ||
        !std::isfinite(plane.at))
        throw UsageError("--plane is '{}'; expected x, y or z and a number, e.g. x=1.2.", text);
    plane.axis = static_cast<int>(axis);
    return plane;
}

std::string PlaneAcross::text() const
{
    return fmt::format("{} = {:.6g}", kAxes[axis], at);
}

namespace {

std::string in_file_name(std::string name)
{
    for (std::size_t at = 0; (at = name.find('/', at)) != std::string::npos;) name.replace(at, 1, "%2F");
    return name;
}

}  // namespace

std::vector<CasePictures> draw_states(std::span<const DrawnState> states, const DrawnField& field,
                                      std::span<const PlaneAcross> planes, const std::string& stem)
{
    const FieldPainter painter(states, field, 640, 400);
    const auto& [low, high, most] = painter.ranges();
    std::vector<CasePictures> all;
    for (const auto& scene : scenes_of(states.front().mesh, planes)) {
        const auto camera = painter.camera(scene);
        for (const auto& state : states) {
            const auto draw = [&](const std::string& name, const at::Tensor& values, std::array<double, 2> range,
                                  bool is_diverging) {
                const auto file = stem + (states.size() > 1 ? "_" + std::to_string(&state - &states.front()) : "") +
                                  scene.file_name + "_" + in_file_name(field.name) + "_" + name;
                const auto picture = painter.paint(scene, camera, state, name, values, range, is_diverging);
                return ThemedPicture{file, picture->png(), picture->png(Theme::Dark)};
            };
            const auto predicted = painter.of(state.predicted), truth = painter.of(state.truth);
            const bool is_vector = field.count > 1;
            CasePictures drawn;
            drawn.field = field.name;
            drawn.when = state.when;
            drawn.seen = scene.seen;
            drawn.pictures = {draw("true", truth, {low, high}, false), draw("predicted", predicted, {low, high}, false),
                              draw("error", predicted - truth, {is_vector ? 0 : -most, most}, !is_vector)};
            all.push_back(std::move(drawn));
        }
    }
    return all;
}

Animation animate_states(std::span<const DrawnState> states, const DrawnField& field,
                         std::span<const PlaneAcross> planes, const std::string& stem)
{
    constexpr std::size_t most_bytes = 1'000'000;
    constexpr std::int32_t width = 360, height = 240;
    constexpr int duration = 300;  // of the whole, in hundredths of a second
    Animation animation{.field = field.name, .name = stem + "_animation"};
    if (!writes_gif()) {
        animation.why_none = "this build of meshard has no giflib (libgif-dev)";
        return animation;
    }
    const FieldPainter painter(states, field, width, height);
    const auto& [low, high, most] = painter.ranges();
    const auto scene = scenes_of(states.front().mesh, planes).front();
    const auto camera = painter.camera(scene);
    std::vector<Image> frames;
    for (const auto& state : states) {
        const auto draw = [&](const std::string& name, const at::Tensor& values) {
            return painter.paint(scene, camera, state, name, painter.of(values), {low, high}, false)->image();
        };
        frames.push_back(beside(draw("true", state.truth), draw("predicted", state.predicted)));
    }
    const auto written = [&] { return gif_of(frames, duration / static_cast<int>(frames.size())); };
    animation.gif = written();
    while (animation.gif.size() >= most_bytes && frames.size() > 1) {
        std::size_t num_kept = 0;
        for (std::size_t i = 0; i < frames.size(); i += 2) std::swap(frames[num_kept++], frames[i]);
        frames.resize(num_kept);
        animation.gif = written();
    }
    return animation;
}

}  // namespace meshard
