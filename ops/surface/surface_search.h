// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/triangle_surface.h"

#include <cstdint>
#include <memory>

namespace meshard {

/// Returns whether this program was built with Embree.
bool has_surface_search();

/// Finds the triangle nearest to a point: Embree's point queries on the triangles' bounding boxes, distances to
/// triangles in double precision. Boxes are rounded outwards, and the distance to every triangle whose box may hold the
/// nearest point is computed, so that the result is that of brute force.
class SurfaceSearch {
public:
    struct Hit {
        std::int64_t face = -1;  ///< the first of equally near faces; -1 if none is within the distance
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
