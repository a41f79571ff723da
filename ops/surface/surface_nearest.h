// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/surface_search.h"
#include "ops/surface/winding_number.h"

#include <array>
#include <cstdint>

namespace meshard {

/// Nearest point of a surface to a query.
struct SurfaceNearest {
    double distance_squared = 0, distance = 0;  ///< `distance` is positive outside, negative inside
    /// Gradient of the distance, nearest point, and its weights of the triangle's corners.
    Vector3 direction{}, point{}, weights{};
    std::int64_t face = -1;  ///< -1 if none is within the distance
    std::array<std::int64_t, 3> corners{};
};

/// The sign is computed from the winding number if it is given, else from pseudonormals.
SurfaceNearest nearest_on_surface(const TriangleSurface& surface, const SurfaceSearch& search,
                                  const WindingNumber* winding, const Vector3& query, double max_distance);

}  // namespace meshard
