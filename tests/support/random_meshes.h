// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>

namespace meshard {

/// A small valid mesh (at most some hundred cells) that is unpleasant in a way of its own: solids of every shape side
/// by side, in pieces, with doubled or unused points, with polyhedra of many faces, a soup of tetrahedra in which faces
/// have more than two cells and cells stand twice, surfaces, higher-order cells, one cell, none, nothing at all. The
/// same for the same seed on every machine.
Mesh random_mesh(std::uint32_t seed);

}  // namespace meshard
