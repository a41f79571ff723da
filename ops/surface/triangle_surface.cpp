// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/triangle_surface.h"

#include "partition/error.h"
#include "partition/lists.h"
#include "partition/mesh/vector_algebra.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace meshard {
namespace {

struct OnSegment {
    double distance_squared = 0;
    Vector3 point{};
    double fraction = 0;  ///< 0 at the first end, 1 at the second
};

OnSegment nearest_on_segment(const Vector3& query, const Vector3& a, const Vector3& b)
{
    const Vector3 edge = b - a;
    const double length_squared = dot(edge, edge);
    OnSegment found;
    found.fraction = length_squared > 0 ? std::clamp(dot(query - a, edge) / length_squared, 0.0, 1.0) : 0.0;
    found.point = found.fraction == 1 ? b : a + found.fraction * edge;
    const Vector3 gap = query - found.point;
    found.distance_squared = dot(gap, gap);
    return found;
}

double angle_between(const Vector3& a, const Vector3& b)
{
    return std::atan2(norm(cross(a, b)), dot(a, b));
}

}  // namespace

NearestOnTriangle nearest_on_triangle(const Vector3& query, const Vector3& a, const Vector3& b, const Vector3& c)
{
    const Vector3 ab = b - a, ac = c - a, aq = query - a;
    const Vector3 normal = cross(ab, ac);
    const double normal_squared = dot(normal, normal);
    // Of a needle rounding tilts the normal: then the sides tell, too.
    const bool is_thin = normal_squared < 1e-12 * dot(ab, ab) * dot(ac, ac);
    NearestOnTriangle nearest;
    bool is_inside = false;
    if (normal_squared > 0) {
        const double of_b = dot(cross(aq, ac), normal) / normal_squared,
                     of_c = dot(cross(ab, aq), normal) / normal_squared;
        const double of_a = 1 - of_b - of_c;
        if (of_a > 0 && of_b > 0 && of_c > 0) {
            const double height = dot(aq, normal);
            nearest = {height * height / normal_squared, a + of_b * ab + of_c * ac, {of_a, of_b, of_c}, 6};
            if (!is_thin) return nearest;
            const auto gap = query - nearest.point;
            nearest.distance_squared = dot(gap, gap);
            is_inside = true;
        }
    }
    const std::array<const Vector3*, 4> corners{&a, &b, &c, &a};
    for (int k = 0; k < 3; ++k) {
        const auto on_edge = nearest_on_segment(query, *corners[k], *corners[k + 1]);
        if ((k > 0 || is_inside) && on_edge.distance_squared >= nearest.distance_squared) continue;
        nearest = {on_edge.distance_squared, on_edge.point, {}, 3 + k};
        nearest.weights[k] = 1 - on_edge.fraction;
        nearest.weights[(k + 1) % 3] = on_edge.fraction;
        if (on_edge.fraction == 0) nearest.feature = k;
        if (on_edge.fraction == 1) nearest.feature = (k + 1) % 3;
    }
    return nearest;
}

TriangleSurface::TriangleSurface(std::vector<double> vertices, std::vector<std::int64_t> faces)
    : vertices_(std::move(vertices)), faces_(std::move(faces))
{
    const auto num_vertices = std::ssize(vertices_) / 3;
    if (faces_.empty()) throw InvalidInput("signed_distance: the surface has no triangles. Pass one or more.");
    for (const auto vertex : faces_) {
        if (vertex < 0 || vertex >= num_vertices) {
            throw InvalidInput("signed_distance: a face of the surface has vertex {}; there are vertices 0 to {}.",
                               vertex, num_vertices - 1);
        }
    }
    if (!std::ranges::all_of(vertices_, [](double x) { return std::abs(x) < 1e18; })) {
        throw InvalidInput(
            "signed_distance: a vertex of the surface has a coordinate that is not finite, or beyond 1e18.");
    }

    const auto position = [&](std::int64_t v) {
        return Vector3{vertices_[3 * v], vertices_[3 * v + 1], vertices_[3 * v + 2]};
    };
    auto order = numbers_from<std::int32_t>(0, num_vertices);
    std::ranges::sort(order, [&](auto v, auto w) { return std::pair(position(v), v) < std::pair(position(w), w); });
    same_as_.resize(num_vertices);
    for (std::int64_t i = 0; i < num_vertices; ++i) {
        const bool is_new = i == 0 || position(order[i - 1]) != position(order[i]);
        same_as_[order[i]] = is_new ? order[i] : same_as_[order[i - 1]];
    }

    struct Side {
        std::int32_t low, high;
        std::int64_t position;  // index into edges_
    };
    std::vector<Side> sides;
    sides.reserve(faces_.size());
    face_normals_.resize(num_faces());
    vertex_normals_.assign(num_vertices, Vector3{});
    for (std::int64_t f = 0; f < num_faces(); ++f) {
        face_normals_[f] = unit(cross(corner(f, 1) - corner(f, 0), corner(f, 2) - corner(f, 0)));
        for (int k = 0; k < 3; ++k) {
            const auto here = same_as_[vertex_id(f, k)], next = same_as_[vertex_id(f, (k + 1) % 3)];
            sides.push_back({std::min(here, next), std::max(here, next), 3 * f + k});
            add_scaled(vertex_normals_[here], face_normals_[f],
                       angle_between(corner(f, (k + 1) % 3) - corner(f, k), corner(f, (k + 2) % 3) - corner(f, k)));
        }
    }
    std::ranges::sort(sides, [](const Side& a, const Side& b) {
        return std::tie(a.low, a.high, a.position) < std::tie(b.low, b.high, b.position);
    });
    edges_.resize(faces_.size());
    for (std::size_t i = 0; i < sides.size(); ++i) {
        if (i == 0 || sides[i].low != sides[i - 1].low || sides[i].high != sides[i - 1].high)
            edge_normals_.push_back({});
        edges_[sides[i].position] = static_cast<std::int32_t>(edge_normals_.size()) - 1;
        add_scaled(edge_normals_.back(), face_normals_[sides[i].position / 3], 1);
    }
}

Vector3 TriangleSurface::corner(std::int64_t face, int corner) const
{
    const auto* at = &vertices_[3 * vertex_id(face, corner)];
    return {at[0], at[1], at[2]};
}

NearestOnTriangle TriangleSurface::nearest(std::int64_t face, const Vector3& query) const
{
    return nearest_on_triangle(query, corner(face, 0), corner(face, 1), corner(face, 2));
}

const Vector3& TriangleSurface::feature_normal(std::int64_t face, int feature) const
{
    if (feature < 3) return vertex_normals_[same_as_[vertex_id(face, feature)]];
    return feature < 6 ? edge_normals_[edges_[3 * face + feature - 3]] : face_normals_[face];
}

}  // namespace meshard
