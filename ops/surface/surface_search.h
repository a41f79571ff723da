// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/triangle_surface.h"

#include <cstdint>
#include <memory>

namespace meshard {

/// True if this program was built with Embree.
bool has_surface_search();

/// Finds the triangle nearest to a point: Embree's point queries over the triangles' bounding boxes, distances to the triangles in double precision.
/// Boxes are rounded outwards, and the distance to every triangle whose box may hold the nearest point is computed: the result is that of brute force.
class SurfaceSearch {
public:
    struct Hit {
        std::int64_t face = -1;  ///< of equally near faces the first; -1 if none is within the distance
        NearestOnTriangle nearest;
    };

    /// The surface must outlive the search. @throws InvalidInput if the program was built without Embree
    explicit SurfaceSearch(const TriangleSurface& surface);
    ~SurfaceSearch();

    /// The nearest triangle to a finite point. Thread-safe.
    Hit nearest(const Vector3& query, double max_distance) const;

private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace meshard
