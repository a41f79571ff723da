// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshard {

/// The kinds of `benchmark_mesh`: `tets`, `hybrid`, `graded`, `surface`, `hexes`.
std::span<const std::string> benchmark_mesh_kinds();

/// Makes a mesh of about `num_cells` cells, of a kind that is common in CFD; it is the same on every machine:
///
/// | kind    | mesh                                                                                                |
/// | ------- | --------------------------------------------------------------------------------------------------- |
/// | tets    | a box of tetrahedra, six for each cell of a grid with randomly moved points                         |
/// | hybrid  | a box in layers: prisms, tetrahedra, pyramids, hexahedra                                            |
/// | graded  | hexahedra of an octree, refined three times at a body; polyhedra at hanging nodes                   |
/// | surface | triangles on a sphere with bumps                                                                    |
/// | hexes   | a box of hexahedra                                                                                  |
///
/// @throws InvalidInput for another kind or less than 1 cell.
Mesh benchmark_mesh(std::string_view kind, std::int64_t num_cells);

}  // namespace meshard
