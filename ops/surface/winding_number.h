// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/triangle_surface.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// The generalized winding number of a surface around a point: 1 inside and 0 outside a closed surface whose triangles
/// are right-handed seen from outside, a value in between near holes (Jacobson et al. 2013).
class WindingNumber {
public:
    /// The surface must outlive this object.
    explicit WindingNumber(const TriangleSurface& surface);

    /// The sum of the solid angles of all triangles, divided by 4 pi.
    double exact(const Vector3& query) const;

    /// `exact` with far groups of triangles approximated as dipoles (Barill et al. 2018), within 0.05.
    double approximate(const Vector3& query) const;

    /// Returns whether the winding number is above one half; sums all triangles if the approximation does not decide
    /// it.
    bool is_inside(const Vector3& query) const;

private:
    struct Node {
        Vector3 centre{};
        Vector3 area{};             ///< sum of area vectors
        double radius_squared = 0;  ///< radius of a sphere around `centre` that contains all triangles of the node
        std::int32_t first = 0, count = 0;
        std::int32_t children = -1;  ///< index in nodes_ of the first of two children; -1 for a leaf
    };

    void build(std::int32_t node, std::vector<Vector3>& centroids);
    double sum_over(std::int32_t first, std::int32_t count, const Vector3& query) const;

    const TriangleSurface& surface_;
    std::vector<std::int32_t> order_;  ///< faces, sorted so that those of a node are consecutive
    std::vector<Node> nodes_;
};

}  // namespace meshard
