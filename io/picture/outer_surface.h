// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <array>
#include <cstdint>
#include <vector>

namespace meshard {

/// A triangle of a surface and the cell that it comes from.
struct SurfaceTriangle {
    std::array<std::int32_t, 3> points;
    std::int32_t cell;
};

/// The polygons of a mesh and those faces of its solids that belong to one solid only, as triangles (fans, or ears of
/// concave ones). Ghost cells (`vtkGhostType` not 0) are left out. Lines and vertices have no surface.
std::vector<SurfaceTriangle> outer_surface(const Mesh& mesh);

}  // namespace meshard
