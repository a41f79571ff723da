// SPDX-License-Identifier: Apache-2.0
#include "apps/learning/cases/computed_inputs.h"

#include "io/mesh_io.h"
#include "ops/fields/mesh_geometry.h"
#include "ops/fields/mesh_operators.h"
#include "ops/surface/surface_distance.h"
#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/surface_triangles.h"
#include "sharding/tensor/host_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace meshard {
namespace {

/// Returns the longest edge of the wall's box.
double size_of(const Wall& wall)
{
    double size = 0;
    for (std::size_t c = 0; c < 3; ++c) {
        auto low = wall.vertices.at(c), high = low;
        for (std::size_t i = c; i < wall.vertices.size(); i += 3) {
            low = std::min(low, wall.vertices[i]);
            high = std::max(high, wall.vertices[i]);
        }
        size = std::max(size, high - low);
    }
    return size;
}

/// Views the values as a tensor (n, 3).
template <class T>
at::Tensor as_tensor(std::vector<T>& values)
{
    return at::from_blob(values.data(), {std::ssize(values) / 3, 3}, c10::CppTypeToScalarType<T>::value);
}

}  // namespace

Wall read_wall(const std::filesystem::path& file, const std::filesystem::path& volume,
               const std::vector<std::string>& patches, Orient orient)
{
    if (file.empty() && patches.empty())
        throw InvalidInput("{}: the model is told distances to a surface, and there is none.", volume.string());
    auto mesh = file.empty() ? read_mesh(volume, {.time = {}, .blocks = patches}) : read_mesh(file);
    auto facing = orient_surface(mesh, orient);
    auto surface = surface_triangles(mesh);
    Wall wall{std::move(surface.points), std::move(surface.triangles), facing};
    if (wall.triangles.empty()) {
        throw InvalidInput("{}: there are no polygons. Distances need a surface of them.",
                           file.empty() ? volume.string() + ", data.wall_patches" : file.string());
    }
    if (file.empty() && orient == Orient::AsIs) {
        std::swap(wall.facing.outward, wall.facing.inward);
        for (std::size_t i = 0; i < wall.triangles.size(); i += 3)
            std::swap(wall.triangles[i + 1], wall.triangles[i + 2]);
    }
    return wall;
}

void add_distances(Mesh& mesh, bool on_cells, const Wall& wall, const std::string& where, bool with_directions)
{
    auto rows = numbers_from<std::int64_t>(0, on_cells ? mesh.num_cells() : mesh.num_points());
    auto queries = row_places(mesh, rows, on_cells, where);
    auto surface = wall;
    const at::NoGradGuard no_grad;
    const auto found = signed_distance(as_tensor(surface.vertices), as_tensor(surface.triangles), as_tensor(queries),
                                       {.sign = SurfaceSign::WindingNumber});
    auto& arrays = arrays_at(mesh, on_cells);
    arrays.push_back(DataArray::from(kDistances, values_on_host<double>(found.distances)));
    if (!with_directions) return;

    auto directions = values_on_host<double>(found.points - as_tensor(queries));
    const auto nearest = kOnTheWall * size_of(wall);
    for (std::size_t i = 0; i < directions.size(); i += 3) {
        const auto length = std::hypot(directions[i], directions[i + 1], directions[i + 2]);
        for (int c = 0; c < 3; ++c) directions[i + c] = length > nearest ? directions[i + c] / length : 0.0;
    }
    arrays.push_back(DataArray::from(kDirections, std::move(directions), 3));
}

void add_areas(Mesh& mesh, bool on_cells, const std::string& where)
{
    const bool has_solids = std::ranges::any_of(mesh.cell_types, [](auto type) { return cell_dimension(type) == 3; });
    if (mesh.num_cells() == 0 || has_solids) {
        throw InvalidInput("{} has {} cells, and data.inputs has areas: only polygons have some. Leave areas out.",
                           where, has_solids ? "solid" : "no");
    }
    const auto vectors = area_vectors(mesh);
    std::vector<double> areas(on_cells ? mesh.num_cells() : mesh.num_points(), 0.0);
    double total = 0;
    for (std::int64_t cell = 0; cell < mesh.num_cells(); ++cell) {
        const auto area = std::hypot(vectors[cell][0], vectors[cell][1], vectors[cell][2]);
        total += area;
        if (on_cells) {
            areas[cell] = area;
            continue;
        }
        const auto corners = mesh.cells.row(cell);
        for (const auto corner : corners) areas[corner] += area / static_cast<double>(corners.size());
    }
    if (!(total > 0) || !std::isfinite(total)) {
        throw InvalidInput("{}: the areas of its polygons add up to {}, and data.inputs has areas. "
                           "Repair the case, or leave areas out.",
                           where, total);
    }
    const auto mean = total / static_cast<double>(areas.size());
    for (auto& area : areas) area /= mean;
    arrays_at(mesh, on_cells).push_back(DataArray::from(kAreas, std::move(areas)));
}

void add_point_normals(Mesh& mesh, const std::string& named, const std::string& where)
{
    if (find_array(mesh.point_data, named) || find_array(mesh.point_data, kPointNormals)) return;
    const bool has_polygons = mesh.num_cells() > 0 &&
                              std::ranges::all_of(mesh.cell_types, [](auto type) { return cell_dimension(type) == 2; });
    if (!has_polygons) {
        throw InvalidInput("{} has no point array '{}', and normals can only be computed of polygons. Name "
                           "the array with data.normals, or set data.inputs=[points].",
                           where, named);
    }
    Mesh surface;  // has no arrays, since the geometry would copy them
    surface.kind = mesh.kind;
    surface.points = mesh.points;
    surface.cells = mesh.cells;
    surface.cell_types = mesh.cell_types;
    const at::NoGradGuard no_grad;
    const auto normals = point_normals(MeshGeometry(std::move(surface)));
    mesh.point_data.push_back(DataArray::from(kPointNormals, values_on_host<double>(normals), 3));
}

std::string ComputedInputs::description() const
{
    std::string text;
    if (!point_normals.empty()) text += " normals unless " + point_normals;
    if (areas) text += " areas";
    if (distances) text += " sdf to triangles around means";
    if (directions) text += " wall_direction";
    if (orient == Orient::Outward) text += " turned outward with " + normals;
    if (text.empty()) return {};
    text = (on_cells ? "of cells" : "of points") + text;
    for (const auto& patch : wall_patches) text += " " + patch;
    return text;
}

std::string point_normals_in_use(const DataConfig& data)
{
    return !data.on_cells && data.has_input("normals") ? data.normals : "";
}

Orient orient_of(const DataConfig& data)
{
    return data.turns_outward ? Orient::Outward : Orient::AsIs;
}

ComputedInputs computed_inputs(const DataConfig& data)
{
    return {.distances = data.needs_wall(),
            .areas = data.has_input("areas"),
            .on_cells = data.on_cells,
            .wall_patches = data.wall_patches,
            .directions = data.has_input("wall_direction"),
            .normals = data.normals,
            .orient = orient_of(data),
            .point_normals = point_normals_in_use(data)};
}

CaseFacing add_computed_inputs(Mesh& mesh, const ComputedInputs& inputs, const std::filesystem::path& wall,
                               const std::filesystem::path& volume, const std::string& where)
{
    CaseFacing facing{orient_surface(mesh, inputs.orient, inputs.normals), {}};
    if (!inputs.point_normals.empty()) add_point_normals(mesh, inputs.point_normals, where);
    if (inputs.areas) add_areas(mesh, inputs.on_cells, where);
    if (inputs.distances || !wall.empty() || !inputs.wall_patches.empty()) {
        const auto body = read_wall(wall, volume, inputs.wall_patches, inputs.orient);
        facing.wall = body.facing;
        if (inputs.distances) add_distances(mesh, inputs.on_cells, body, where, inputs.directions);
    }
    return facing;
}

void remove_computed_inputs(Mesh& mesh)
{
    for (auto* arrays : {&mesh.cell_data, &mesh.point_data}) {
        std::erase_if(*arrays, [](const DataArray& array) {
            const auto& name = array.name();
            return name == kDistances || name == kDirections || name == kAreas || name == kPointNormals;
        });
    }
}

std::vector<double> row_places(const Mesh& mesh, std::span<const std::int64_t> rows, bool on_cells,
                               const std::string& where)
{
    const auto num_rows = std::ssize(rows);
    const auto coordinates = mesh.points.to_doubles();
    std::vector<double> places(3 * num_rows, 0.0);
    for (std::int64_t row = 0; row < num_rows; ++row) {
        double* place = &places[3 * row];
        if (!on_cells) {
            std::copy_n(&coordinates[3 * row], 3, place);
        } else {
            const auto corners = mesh.cells.row(row);
            if (corners.empty()) throw InvalidInput("{}: cell {} has no points.", where, rows[row]);
            for (const auto corner : corners) {
                for (int c = 0; c < 3; ++c) place[c] += coordinates[3 * static_cast<std::int64_t>(corner) + c];
            }
            for (int c = 0; c < 3; ++c) place[c] /= static_cast<double>(corners.size());
        }
        for (int c = 0; c < 3; ++c) {
            if (!std::isfinite(place[c]))
                throw InvalidInput("{}: a coordinate of {} {} is not finite.", where,
                                   on_cells ? "the points of cell" : "point", rows[row]);
        }
    }
    return places;
}

}  // namespace meshard
