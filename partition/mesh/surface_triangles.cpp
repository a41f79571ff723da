// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_triangles.h"

#include "partition/mesh/cell_rings.h"

namespace meshard {

SurfaceTriangles surface_triangles(const Mesh& mesh)
{
    SurfaceTriangles surface{mesh.points.to_doubles(), {}};
    auto& [points, triangles] = surface;
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            if (corners.size() < 3) return;
            if (corners.size() == 3) {
                triangles.insert(triangles.end(), corners.begin(), corners.end());
                return;
            }
            const auto middle = static_cast<std::int64_t>(points.size()) / 3;
            for (int c = 0; c < 3; ++c) {
                double sum = 0;
                for (const auto corner : corners) sum += points[3 * static_cast<std::size_t>(corner) + c];
                points.push_back(sum / static_cast<double>(corners.size()));
            }
            for (std::size_t k = 0; k < corners.size(); ++k)
                triangles.insert(triangles.end(), {corners[k], corners[(k + 1) % corners.size()], middle});
        });
    }
    return surface;
}

}  // namespace meshard
