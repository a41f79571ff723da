// SPDX-License-Identifier: Apache-2.0
#include "ops/surface/surface_nearest.h"

#include "partition/mesh/vector_algebra.h"

#include <cmath>

namespace meshard {

SurfaceNearest nearest_on_surface(const TriangleSurface& surface, const SurfaceSearch& search,
                                  const WindingNumber* winding, const Vector3& query, double max_distance)
{
    const auto [face, nearest] = search.nearest(query, max_distance);
    if (face < 0) return {};
    const Vector3& normal = surface.feature_normal(face, nearest.feature);
    const bool is_corner = nearest.feature < 3, is_inside_triangle = nearest.feature == 6;
    // Uses the vector from a corner instead of the nearest point: both have the same sign, but a corner is not rounded.
    const Vector3 from_corner = query - surface.corner(face, is_corner            ? nearest.feature
                                                             : is_inside_triangle ? 0
                                                                                  : nearest.feature - 3);
    const bool is_above = dot(from_corner, normal) >= 0;
    const double distance = std::sqrt(nearest.distance_squared);
    // On the surface there is no side, and the winding number is 1/2, where it takes a sum over all triangles.
    const bool is_outside = distance == 0 || (winding ? !winding->is_inside(query) : is_above);
    const double sign = is_outside ? 1 : -1;
    // If the nearest point is inside the triangle, the direction is the triangle's normal, which is accurate also for
    // points very near the surface.
    Vector3 direction = is_inside_triangle ? (is_above ? sign : -sign) * normal : sign * unit(query - nearest.point);
    if (distance == 0) direction = unit(normal);
    SurfaceNearest found{
        nearest.distance_squared, sign * distance, direction, nearest.point, nearest.weights, face, {}};
    for (int k = 0; k < 3; ++k) found.corners[k] = surface.vertex_id(face, k);
    return found;
}

}  // namespace meshard
