// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/csr.h"
#include "partition/mesh/mesh.h"
#include "partition/mesh/surface_geometry.h"
#include "partition/mesh/vector_algebra.h"

#include <cstdint>
#include <span>
#include <vector>

namespace meshard {

/// Point coordinates in double precision.
std::vector<Vector3> point_positions(const Mesh& mesh);

/// Facets of one cell, by their corners: the faces of a solid, the edges of a polygon in their order; none for lines, vertices and strips. Cells of
/// higher order count by their corners.
/// @throws InvalidInput for a convex point set and other solids whose faces the mesh does not say
void cell_facets(const Mesh& mesh, std::int64_t cell, Csr& facets);

/// Turns the faces of a solid round `inside` (the mean of its points) so that all are right-handed seen from outside. Files list their points either
/// way round; in a concave solid some faces look away from the middle, so that where the middle's view does not close the solid faces follow the edges
/// that they have in common.
void orient_outwards(std::span<const Vector3> positions, const Vector3& inside, Csr& faces);

/// Triangles between the corners of a face and the corners' mean: what the face is taken to be when it is not plane. Calls `f(a, b, area, middle)`
/// for the edge from point a to point b with the triangle's area vector and that mean.
template <class F>
void for_each_face_triangle(std::span<const Vector3> positions, std::span<const std::int32_t> face, F&& f)
{
    Vector3 middle{};
    for (const std::int32_t point : face) add_scaled(middle, positions[point], 1.0 / static_cast<double>(face.size()));
    for (std::size_t k = 0; k < face.size(); ++k) {
        const std::int32_t a = face[k], b = face[(k + 1) % face.size()];
        f(a, b, 0.5 * cross(positions[a] - middle, positions[b] - middle), middle);
    }
}

/// Size and middle of each cell.
struct CellMeasures {
    std::vector<double> sizes;         ///< length of lines, area of polygons, volume of solids; 0 of vertices
    std::vector<Vector3> centroids;    ///< of that; of cells without size the mean of their points
};

/// The area of a polygon is the length of its area vector, the volume of a solid that within its faces' triangles; never negative.
/// @throws InvalidInput as `cell_facets`
CellMeasures cell_measures(const Mesh& mesh);

/// Cells of the same dimension that have a facet in common: `cell_graph` without lines, vertices and strips, and without the edges between a wall polygon
/// and its solid.
/// @throws InvalidInput as `cell_graph`
Csr facet_graph(const Mesh& mesh);

struct FacetNeighbors {
    Csr cells;                   ///< `facet_graph`
    std::vector<double> sizes;   ///< of each entry: length or area of what is in common
};

/// Several times the time of `facet_graph`.
/// @throws InvalidInput as `cell_graph` and `cell_facets`
FacetNeighbors facet_neighbors(const Mesh& mesh);

}  // namespace meshard
