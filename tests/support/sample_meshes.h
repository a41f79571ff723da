// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

namespace meshard {

// Tiny meshes with names. All are valid, and all carry the arrays of `add_sample_arrays`.

/// Two triangles with a common edge, of the unit square.
Mesh two_triangles();

/// n unit squares in a row along x: cell i touches i - 1 and i + 1.
Mesh strip(std::int32_t n);

/// n x n x n hexahedra of the unit cube; cell (i, j, k) is i + n j + n n k. Double precision.
Mesh cube(std::int32_t n);

/// The same as polyhedra.
Mesh polyhedral_cube(std::int32_t n);

/// The unit cube in n x n x n boxes of six tetrahedra each.
Mesh tet_cube(std::int32_t n);

/// Hexahedron 0, pyramid 1 on it, tetra 2 on the pyramid, wedge 3 beside the hexahedron, polyhedron 4 below it, and
/// quad 5, the polyhedron's bottom.
Mesh mixed_cells();

/// One cell of each: vertex, poly-vertex, line, poly-line, triangle, quad, pentagon, strip, in VTK's order for
/// surfaces.
Mesh surface_of_all_kinds();

/// Closed sphere of 4 n (n - 1) triangles, n rings of latitude, radius 1.
Mesh sphere(std::int32_t n);

/// The skin of a hexagonal prism: two hexagons and six quads.
Mesh polygon_surface();

/// A ring: 3 x 3 squares without the middle one.
Mesh with_hole();

/// `pieces` strips of `n` squares each that do not touch.
Mesh islands(std::int32_t pieces, std::int32_t n);

/// Two triangles and five points that no cell uses, one of them first.
Mesh with_unused_points();

/// n points spread evenly over the unit cube, no cells.
Mesh random_cloud(std::int32_t n, std::uint32_t seed);

/// n points and one vertex cell on each.
Mesh vertex_cells(std::int32_t n);

/// No points and no cells.
Mesh empty_mesh();

/// The same cells, each with points of its own.
Mesh exploded(const Mesh& mesh);

struct NamedMesh {
    std::string name;
    Mesh mesh;
};

/// All of the above, in small sizes.
std::vector<NamedMesh> sample_meshes();

/// Point arrays `pressure` (Float32) and `velocity` (Float64, 3, named components), cell arrays `patch` (Int32), `flag`
/// (UInt8) and `label` (Int64), field arrays `time` (Float64) and `names` (String). Values differ from row to row.
void add_sample_arrays(Mesh& mesh);

}  // namespace meshard
