// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

// Meshes in which very many cells meet at one point, edge, face or cell. Double precision; cells are numbered around
// the hub.

/// n lines of length 1 from the origin, in the plane z = 0.
Mesh star_of_lines(std::int32_t n);

/// n triangles around the edge from the origin to (0, 0, 1), as the pages of a book.
Mesh triangles_at_an_edge(std::int32_t n);

/// n tetrahedra on one face, one inside the other.
Mesh tetrahedra_at_a_face(std::int32_t n);

/// A disk of n triangles around its centre, radius 1.
Mesh triangle_fan(std::int32_t n);

/// A polygon of n edges, cell 0, and a triangle on each of them.
Mesh polygon_with_triangles(std::int32_t n);

/// A polyhedron, cell 0: a disk of n triangles above and below and its rim of n quads; and a tetrahedron on each
/// triangle.
Mesh polyhedron_with_tetrahedra(std::int32_t n);

using MakeMesh = Mesh (*)(std::int32_t n);

struct NamedHub {
    std::string name;
    MakeMesh make;
};

/// All of the above.
std::vector<NamedHub> hub_meshes();

}  // namespace meshard
