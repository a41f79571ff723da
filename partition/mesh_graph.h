// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh.h"

namespace meshard {

/// Cells that share a face (solids), an edge (polygons), an end point (lines) or a point (vertices): the dual graph.
///
/// Two cells are neighbours when they have one such facet with the same set of points, whatever its order; a facet of three
/// or more cells joins all of them. Works for every VTK cell type, polyhedra and higher-order cells (by their corners) included;
/// mixed dimensions meet where a facet of the higher one is the lower one itself (a wall polygon and its solid).
/// Symmetric, no loops, no double edges, each row ascending.
///
/// The ends of a poly-line are those of the whole line; a strip has the edges of all its triangles; a convex point set has the faces
/// of its hull. A face that is collapsed to fewer than three different points, or an edge to one, joins nothing.
/// Time and memory follow the number of facets: 0.3 s and 40 bytes a facet for a million hexahedra.
/// @throws InvalidInput for a cell whose faces nobody can know: an unknown or parametric type, too few points, no face stream.
Csr cell_graph(const Mesh& mesh);

/// The graph of what is cut: `cell_graph`, or for a point cloud (and for a mesh of vertex cells only) the symmetric graph
/// of the 8 nearest neighbours.
Csr mesh_graph(const Mesh& mesh);

}  // namespace meshard
