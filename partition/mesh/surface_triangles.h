// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// Triangles that span the polygons of a mesh, (n, 3) indices of points, turned as these are: of each polygon those at its first corner. None of other cells.
std::vector<std::int64_t> surface_triangles(const Mesh& mesh);

}  // namespace meshard
