// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/fields/mesh_operator.h"

#include <ATen/core/Tensor.h>

namespace meshard {

// Operators on fields of a mesh. Making one is collective on a cut mesh; so is using it.

/// From which cells a cell's gradient is fitted.
enum class GradientNeighbors : std::uint8_t {
    Facet,  ///< those that share a facet; one ghost layer by face is enough
    Vertex  ///< those that share a point, on meshes where a corner cell has too few of the others; needs a ghost layer by vertex
};

/// Gradient of a cell field at the cells' centroids, (cells, ...) to (cells, ..., 3): least squares over the neighbours' differences, weighted by one over
/// the squared distance. Linear fields exactly, where the neighbours span the cell's space; elsewhere the part of the gradient that they span.
/// On polygons it is the gradient within the surface. Neighbours are cells of the same dimension.
/// @throws InvalidInput on every rank if ghosts are missing
MeshOperator least_squares_gradient(const MeshGeometry& geometry, GradientNeighbors neighbors = GradientNeighbors::Facet);

/// Mean gradient over each cell of a point field, (points, ...) to (cells, ..., 3): Gauss's theorem over solids' faces and polygons' edges, the field
/// linear between the points of a face and their mean. Linear fields exactly, on plane polygons and on all solids. Zero on lines and vertices.
/// Sums of volume times divergence are the flux through the outside, to rounding.
MeshOperator green_gauss_gradient(const MeshGeometry& geometry);

/// Divergence of a vector field, (rows, ..., 3) to (cells, ...), with the weights of a gradient: its trace.
/// @throws InvalidInput if the operator is no gradient
MeshOperator divergence(const MeshOperator& gradient);

/// Laplacian of a cell field by finite volumes, (cells, ...) to (cells, ...): fluxes between neighbours are facet size times difference over distance of
/// centroids; none through the outside. The sum of size times Laplacian is zero. Consistent where the line between centroids is normal to the facet.
MeshOperator laplacian(const MeshGeometry& geometry);

/// Mean over the cells that share a facet with each cell, itself left out; a cell without neighbours keeps its value.
MeshOperator facet_neighbor_mean(const MeshGeometry& geometry);

/// Mean over the points of each cell, (points, ...) to (cells, ...); zero for a cell without points.
MeshOperator points_to_cells(const MeshGeometry& geometry);

/// Mean over the cells that use each point, (cells, ...) to (points, ...); zero for a point that no cell uses. On a cut mesh equal to rounding.
MeshOperator cells_to_points(const MeshGeometry& geometry);

/// Unit normals at the points of a surface, (points, 3): of the sum of the area vectors around.
at::Tensor point_normals(const MeshGeometry& geometry);

/// Sum of value times size over all cells, (cells, ...) to (...). Of a cut field the sum over ranks is pending: reduced where it is first needed.
at::Tensor integral(const MeshGeometry& geometry, const at::Tensor& cell_field);

/// Force and moment that a fluid puts on a surface, split by cause; (3) each. The tensors' counterpart of `integrate_forces`, differentiable.
struct FieldForces {
    at::Tensor pressure_force, viscous_force;
    at::Tensor pressure_moment, viscous_moment;  ///< about the centre asked for
};

/// @param pressure   (cells)
/// @param tractions  (cells, 3), the stress on the body; undefined for none. OpenFOAM's wallShearStress is minus that.
FieldForces field_forces(const MeshGeometry& geometry, const at::Tensor& pressure, const at::Tensor& tractions = {}, const Vector3& centre = {});

}  // namespace meshard
