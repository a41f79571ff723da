// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fields/mesh_operator.h"

#include <ATen/core/Tensor.h>

namespace meshard {

// Operators on fields of a mesh. On a mesh that is cut among ranks, making an operator is collective, and so is
// applying it.

/// The cells whose values a cell's gradient is fitted to.
enum class GradientNeighbors : std::uint8_t {
    /// Cells that share a facet; one ghost layer by face is enough.
    Facet,
    /// Cells that share a point, for meshes whose corner cells share facets with too few cells; needs a ghost layer by
    /// vertex. At a point with more than 256 cells each cell is a neighbour of those 1, 2, 4, 8, ... positions before
    /// and after it by number.
    Vertex
};

/// Gradient of a cell field at the cells' centroids, (cells, ...) to (cells, ..., 3): least squares fit to the
/// differences to the neighbours, weighted by one over the squared distance. Exact for linear fields if the neighbours
/// span the cell's space; otherwise the part of the gradient that they span. On polygons it is the gradient within the
/// surface. Neighbours are cells of the same dimension.
/// @throws InvalidInput on every rank if ghosts are missing
MeshOperator least_squares_gradient(const MeshGeometry& geometry,
                                    GradientNeighbors neighbors = GradientNeighbors::Facet);

/// Mean gradient of a point field over each cell, (points, ...) to (cells, ..., 3): Gauss's theorem over the faces of
/// solids and the edges of polygons. The field is taken as linear on the triangles between a face's edges and the mean
/// of its points. Exact for linear fields on plane polygons and on all solids. Zero on lines and vertices. The sum of
/// volume times divergence is the flux through the boundary, up to rounding.
MeshOperator green_gauss_gradient(const MeshGeometry& geometry);

/// Laplacian of a cell field by finite volumes, (cells, ...) to (cells, ...): the flux between neighbours is the
/// facet's size times the difference over the distance of the centroids; no flux through the boundary. The sum of size
/// times Laplacian is zero. Consistent if the line between centroids is normal to the facet.
MeshOperator laplacian(const MeshGeometry& geometry);

/// Mean over the cells that use each point, (cells, ...) to (points, ...); zero for a point that no cell uses. Results
/// of cut and whole mesh are equal up to rounding.
MeshOperator cells_to_points(const MeshGeometry& geometry);

/// Unit normals at the points of a surface, (points, 3): the direction of the sum of the area vectors of the cells
/// around each point.
at::Tensor point_normals(const MeshGeometry& geometry);

}  // namespace meshard
