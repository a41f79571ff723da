// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/report/case_pictures.h"

#include "apps/console/console.h"
#include "io/picture/render.h"
#include "partition/error.h"

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
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
    std::vector<std::uint8_t> is_beside(static_cast<std::size_t>(mesh.num_cells()), 1);
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
    return {
        kViewsAlong[static_cast<std::size_t>(plane.axis)], {beside_plane(mesh, plane)}, "cells at " + plane.text(), {}};
}

std::vector<Scene> scenes_of(const Mesh& mesh, std::span<const PlaneAcross> planes)
{
    const auto bounds = bounds_of(mesh);
    if (const auto axis = flat_axis(bounds); axis >= 0)
        return {{kViewsAlong[static_cast<std::size_t>(axis)], {}, {}, {}}};
    if (!has_solids(mesh)) return {{}};
    if (planes.empty()) {
        const auto y = plane_of(bounds);
        auto scene = scene_at(mesh, {1, y});
        if (std::abs(y) <= 1e-4 * bounds.extent(1)) scene.seen = "cells at " + PlaneAcross{1, 0}.text();
        return {std::move(scene)};
    }
    std::vector<Scene> scenes;
    for (const auto& plane : planes) {
        const auto low = bounds.low[static_cast<std::size_t>(plane.axis)],
                   high = bounds.high[static_cast<std::size_t>(plane.axis)];
        if (plane.at < low || plane.at > high) {
            throw InvalidInput(fmt::format(
                "the plane {} lies beside the volume, which reaches from {} = {:f} to {:f}. Choose another --plane.",
                plane.text(), kAxes[static_cast<std::size_t>(plane.axis)], low, high));
        }
        scenes.push_back(scene_at(mesh, plane));
        scenes.back().file_name = "_" + plane.text();
        std::erase(scenes.back().file_name, ' ');
    }
    return scenes;
}

}  // namespace

PlaneAcross PlaneAcross::from_text(const std::string& text)
{
    const auto axis = text.size() > 2 && text[1] == '=' ? kAxes.find(text[0]) : std::string_view::npos;
    PlaneAcross plane;
    const auto* const end = text.data() + text.size();
    if (axis == std::string_view::npos || std::from_chars(text.data() + 2, end, plane.at).ptr != end ||
        !std::isfinite(plane.at))
        throw UsageError("--plane is '" + text + "'; expected x, y or z and a number, e.g. x=1.2.");
    plane.axis = static_cast<int>(axis);
    return plane;
}

std::string PlaneAcross::text() const
{
    return fmt::format("{} = {:.4g}", kAxes[static_cast<std::size_t>(axis)], at);
}

std::vector<CasePictures> draw_case(const Mesh& whole, const std::string& field, bool on_cells,
                                    const at::Tensor& predicted, const at::Tensor& truth,
                                    std::span<const PlaneAcross> planes, const std::string& stem)
{
    const bool is_vector = truth.size(1) > 1;
    const auto error = predicted - truth;
    const auto number = [&](const at::Tensor& values) { return is_vector ? values.norm(2, 1) : values.squeeze(1); };
    const auto shown = number(truth);
    const auto low = shown.min().item<double>(), high = shown.max().item<double>();
    const auto most = std::max(number(error).abs().max().item<double>(), 1e-30);

    Mesh mesh = whole;
    mesh.cell_data.clear();
    mesh.point_data.clear();
    const auto draw = [&](const Scene& scene, const std::string& name, const at::Tensor& values,
                          std::array<double, 2> range, bool is_diverging) {
        if (!(range[1] > range[0])) range[1] = range[0] + std::max(1e-12, std::abs(range[0]) * 1e-6);
        const auto numbers = number(values).contiguous();
        const auto* begin = numbers.data_ptr<float>();
        mesh.cell_data = scene.marks;
        mesh.point_data.clear();
        auto& arrays = on_cells ? mesh.cell_data : mesh.point_data;
        arrays.push_back(DataArray::from("value", std::vector<float>(begin, begin + numbers.numel()), 1));
        PicturePainter painter({.color_by = "value",
                                .component = {},
                                .range = range,
                                .is_diverging = is_diverging,
                                .view = scene.view,
                                .width = 640,
                                .height = 400,
                                .title = field + (is_vector ? " (length) " : " ") + name});
        painter.paint_whole(mesh);
        return ThemedPicture{stem + scene.file_name + "_" + field + "_" + name, painter.png(),
                             painter.png(Theme::Dark)};
    };
    std::vector<CasePictures> all;
    for (const auto& scene : scenes_of(mesh, planes)) {
        CasePictures drawn;
        drawn.field = field;
        drawn.seen = scene.seen;
        drawn.pictures = {draw(scene, "true", truth, {low, high}, false),
                          draw(scene, "predicted", predicted, {low, high}, false),
                          draw(scene, "error", error, {is_vector ? 0 : -most, most}, !is_vector)};
        all.push_back(std::move(drawn));
    }
    return all;
}

}  // namespace meshard
