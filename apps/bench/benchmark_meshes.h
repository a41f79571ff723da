// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

/// Kinds of `benchmark_mesh`: `tets`, `hybrid`, `graded`, `surface`, `hexes`.
std::span<const std::string> benchmark_mesh_kinds();

/// A mesh of the kinds that CFD meets, of about `num_cells` cells, the same on every machine:
///
/// | kind    | what                                                                                                |
/// | ------- | --------------------------------------------------------------------------------------------------- |
/// | tets    | a box of jittered points in tetrahedra, six a grid cell                                             |
/// | hybrid  | a box in layers: prisms, tetrahedra, pyramids, hexahedra                                            |
/// | graded  | hexahedra of an octree, three times finer at a body than far from it, hanging nodes as polyhedra     |
/// | surface | a sphere with bumps in triangles                                                                    |
/// | hexes   | a box of hexahedra                                                                                  |
///
/// @throws InvalidInput for another kind or less than 1 cell.
Mesh benchmark_mesh(std::string_view kind, std::int64_t num_cells);

}  // namespace meshard
