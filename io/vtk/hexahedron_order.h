// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

namespace meshard {

/// Returns whether the mesh has Lagrange or Bezier hexahedra, whose points have another order in VTK's files before
/// version 2.1.
bool has_curved_hexahedra(const Mesh& mesh);

/// Exchanges the points on the last two upright edges of these hexahedra: 3-7 and 2-6 in the old order, 2-6 and 3-7 in
/// the new one, which meshes use. Orders along the axes are read from the cell array with the role HigherOrderDegrees,
/// else derived from the number of points.
void exchange_upright_edges(Mesh& mesh);

}  // namespace meshard
