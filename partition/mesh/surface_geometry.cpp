// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_geometry.h"

#include "partition/error.h"
#include "partition/mesh/cell_rings.h"
#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace meshard {

namespace {

std::vector<Vector3> point_coordinates(const Mesh& mesh)
{
    std::vector<Vector3> coordinates(mesh.num_points());
    with_scalar_type(mesh.points.type(), [&]<class T>() {
        const auto values = mesh.points.values<T>();
        for (std::size_t i = 0; i < coordinates.size(); ++i) {
            for (std::size_t d = 0; d < 3; ++d) coordinates[i][d] = static_cast<double>(values[3 * i + d]);
        }
    });
    return coordinates;
}

/// Calls `f(area vector, centroid)` for each triangle between `apex` and an edge of the ring.
template <class F>
void for_each_triangle(std::span<const Vector3> x, std::span<const std::int32_t> ring, const Vector3& apex, F&& f)
{
    for (std::size_t k = 0; k < ring.size(); ++k) {
        const Vector3& a = x[ring[k]];
        const Vector3& b = x[ring[(k + 1) % ring.size()]];
        Vector3 area = cross(a - apex, b - apex);
        for (double& component : area) component *= 0.5;
        f(area, Vector3{(apex[0] + a[0] + b[0]) / 3, (apex[1] + a[1] + b[1]) / 3, (apex[2] + a[2] + b[2]) / 3});
    }
}

}  // namespace

std::int64_t first_strip(const Mesh& mesh)
{
    const auto strip = std::ranges::find(mesh.cell_types, CellShape::Strip,
                                         [](std::uint8_t type) { return cell_type_of(type).shape; });
    return strip == mesh.cell_types.end() ? -1 : strip - mesh.cell_types.begin();
}

void require_single_polygons(const Mesh& mesh, const std::string& where)
{
    if (first_strip(mesh) >= 0)
        throw InvalidInput("{} has strips of triangles, whose area vectors may cancel: areas, normals and "
                           "forces need single polygons. Triangulate it (ParaView: Triangulate).",
                           where);
}

double surface_area(const Mesh& mesh)
{
    const std::vector<Vector3> x = point_coordinates(mesh);
    double sum = 0;
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            Vector3 whole{};
            for_each_triangle(x, corners, x[corners[0]],
                              [&](const Vector3& area, const Vector3&) { add_scaled(whole, area, 1.0); });
            sum += norm(whole);
        });
    }
    return sum;
}

std::vector<Vector3> area_vectors(const Mesh& mesh)
{
    const std::vector<Vector3> x = point_coordinates(mesh);
    std::vector<Vector3> areas(mesh.num_cells(), Vector3{});
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            // With a corner of the polygon as apex, large coordinates do not cancel in the cross products.
            for_each_triangle(x, corners, x[corners[0]],
                              [&](const Vector3& area, const Vector3&) { add_scaled(areas[i], area, 1.0); });
        });
    }
    return areas;
}

std::vector<Vector3> surface_centroids(const Mesh& mesh)
{
    const std::vector<Vector3> x = point_coordinates(mesh);
    std::vector<Vector3> centroids(mesh.num_cells(), Vector3{});
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        Vector3 weighted{};
        double weight = 0, reach = 0;  // the sum of the corners' squared distances from their mean
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            // Triangles outside of a concave polygon are turned round, and count negative.
            Vector3 whole{};
            const Vector3 mean = mean_of(x, corners);
            for_each_triangle(x, corners, mean,
                              [&](const Vector3& area, const Vector3&) { add_scaled(whole, area, 1.0); });
            const Vector3 normal = unit(whole);
            for (const auto corner : corners) reach += dot(x[corner] - mean, x[corner] - mean);
            for_each_triangle(x, corners, mean, [&](const Vector3& area, const Vector3& centroid) {
                const double size = dot(area, normal);
                add_scaled(weighted, centroid, size);
                weight += size;
            });
        });
        if (weight > 1e-12 * reach)  // less is rounding of corners in one line
            add_scaled(centroids[i], weighted, 1 / weight);
        else
            centroids[i] = mean_of(x, mesh.cells.row(i));
    }
    return centroids;
}

SurfaceEdges surface_edges(const Mesh& mesh)
{
    std::vector<std::uint64_t> edges;
    edges.reserve(mesh.cells.num_entries());
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            for (std::size_t k = 0; k < corners.size(); ++k) {
                const auto [low, high] = std::minmax(corners[k], corners[(k + 1) % corners.size()]);
                if (low != high)
                    edges.push_back(static_cast<std::uint64_t>(low) << 32 | static_cast<std::uint32_t>(high));
            }
        });
    }
    std::ranges::sort(edges);

    SurfaceEdges counts;
    for (auto first = edges.begin(); first != edges.end();) {
        const auto last =
            std::find_if(first, edges.end(), [edge = *first](std::uint64_t other) { return other != edge; });
        ++counts.num_edges;
        if (last - first == 1) ++counts.num_boundary;
        if (last - first > 2) ++counts.num_non_manifold;
        first = last;
    }
    return counts;
}

bool areas_cancel(std::span<const Vector3> areas)
{
    constexpr double tolerance = 1e-6;
    Vector3 sum{};
    double total = 0;
    for (const Vector3& area : areas) {
        for (int c = 0; c < 3; ++c) sum[c] += area[c];
        total += std::hypot(area[0], area[1], area[2]);
    }
    return std::hypot(sum[0], sum[1], sum[2]) <= tolerance * total;
}

double enclosed_volume(const Mesh& mesh)
{
    const std::vector<Vector3> areas = area_vectors(mesh);
    const std::vector<Vector3> centroids = surface_centroids(mesh);
    // Relative to a point of the surface, so that bodies far from the origin lose no precision.
    const Vector3 origin = centroids.empty() ? Vector3{} : centroids.front();
    double volume = 0;
    for (std::size_t i = 0; i < areas.size(); ++i) volume += dot(centroids[i] - origin, areas[i]) / 3;
    return volume;
}

}  // namespace meshard
