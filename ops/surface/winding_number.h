// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/surface/triangle_surface.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// How often a surface winds around a point: 1 inside and 0 outside of a closed surface whose triangles are right-handed seen from outside, a value between
/// them near holes (Jacobson et al. 2013, generalized winding numbers).
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
        double radius_squared = 0;  ///< of a sphere around `centre` that holds all triangles of the node
        std::int32_t first = 0, count = 0;
        std::int32_t children = -1;  ///< index of the first of two in nodes_; -1 for a leaf
    };

    void build(std::int32_t node, std::vector<Vector3>& centroids);
    double sum_over(std::int32_t first, std::int32_t count, const Vector3& query) const;

    const TriangleSurface& surface_;
    std::vector<std::int32_t> order_;  ///< faces, sorted so that those of a node are consecutive
    std::vector<Node> nodes_;
};

}  // namespace meshard
