// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ops/surface/triangle_surface.h"

namespace meshard {

/// How often a surface goes round a point: 1 inside and 0 outside of a closed one whose triangles are right-handed from outside, something between near
/// holes (Jacobson et al. 2013, generalized winding numbers).
class WindingNumber {
public:
    /// The surface must outlive this.
    explicit WindingNumber(const TriangleSurface& surface);

    /// Sum of solid angles of all triangles, over 4 pi.
    double exact(const Vector3& query) const;

    /// The same with far groups of triangles as dipoles (Barill et al. 2018): within 0.05.
    double approximate(const Vector3& query) const;

    /// Winding number above one half; all triangles are summed where the approximation cannot tell.
    bool is_inside(const Vector3& query) const;

private:
    struct Node {
        Vector3 centre{};
        Vector3 area{};             ///< sum of area vectors
        double radius_squared = 0;  ///< no triangle of the node goes beyond
        std::int32_t first = 0, count = 0;
        std::int32_t children = -1; ///< place of the first of two; -1 for a leaf
    };

    void build(std::int32_t node, std::vector<Vector3>& centroids);
    double sum_over(std::int32_t first, std::int32_t count, const Vector3& query) const;

    const TriangleSurface& surface_;
    std::vector<std::int32_t> order_;   ///< faces, those of a node in a row
    std::vector<Node> nodes_;
};

}  // namespace meshard
