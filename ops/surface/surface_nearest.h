// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/surface_search.h"
#include "ops/surface/winding_number.h"

#include <array>
#include <cstdint>

namespace meshard {

/// Nearest point of a surface to a query.
struct SurfaceNearest {
    double distance_squared = 0, distance = 0;  ///< the latter positive outside, negative inside
    Vector3 direction{}, point{}, weights{};    ///< gradient of the distance, nearest point, and its weights of the triangle's corners
    std::int64_t face = -1;                     ///< -1 for none within the distance
    std::array<std::int64_t, 3> corners{};
};

/// The sign by the winding number if it is given, else by pseudonormals.
SurfaceNearest nearest_on_surface(const TriangleSurface& surface, const SurfaceSearch& search, const WindingNumber* winding, const Vector3& query,
                                  double max_distance);

}  // namespace meshard
