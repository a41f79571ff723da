// SPDX-License-Identifier: Apache-2.0
#include "partition/mesh/surface_triangles.h"

#include "partition/mesh/cell_rings.h"

namespace meshard {

std::vector<std::int64_t> surface_triangles(const Mesh& mesh)
{
    std::vector<std::int64_t> triangles;
    std::vector<std::int32_t> ring;
    for (std::int64_t i = 0; i < mesh.num_cells(); ++i) {
        for_each_ring(mesh, i, ring, [&](std::span<const std::int32_t> corners) {
            for (std::size_t k = 1; k + 1 < corners.size(); ++k) triangles.insert(triangles.end(), {corners[0], corners[k], corners[k + 1]});
        });
    }
    return triangles;
}

}  // namespace meshard
