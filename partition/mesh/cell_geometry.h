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

/// Appends the facets of one cell, by their corners: the faces of a solid, the edges of a polygon in order; none for
/// lines, vertices and strips. Of cells of higher order only the corners are used.
/// @throws InvalidInput for a convex point set and other solids whose faces the mesh does not define
void cell_facets(const Mesh& mesh, std::int64_t cell, Csr& facets);

/// Orients the faces of a solid so that all are right-handed seen from outside; files list the points of a face in
/// either order. `inside` is the mean of the solid's points: faces are oriented away from it. In a concave solid that
/// may be wrong for some; if the oriented faces are not closed, they are oriented consistently along their common edges
/// instead.
void orient_outwards(std::span<const Vector3> positions, const Vector3& inside, Csr& faces);

/// Calls `f(a, b, area, mean)` for each triangle between an edge of a face, from point a to point b, and the mean of
/// its corners, with the triangle's area vector. A face that is not plane is defined by these triangles.
template <class F>
void for_each_face_triangle(std::span<const Vector3> positions, std::span<const std::int32_t> face, F&& f)
{
    Vector3 mean{};
    for (const std::int32_t point : face) add_scaled(mean, positions[point], 1.0 / static_cast<double>(face.size()));
    for (std::size_t k = 0; k < face.size(); ++k) {
        const std::int32_t a = face[k], b = face[(k + 1) % face.size()];
        f(a, b, 0.5 * cross(positions[a] - mean, positions[b] - mean), mean);
    }
}

/// Size and centroid of each cell.
struct CellMeasures {
    std::vector<double> sizes;  ///< length of lines, area of polygons, volume of solids; 0 for vertices
    /// Centroid of the length, area or volume; for cells of size 0 the mean of their points.
    std::vector<Vector3> centroids;
};

/// The area of a polygon is the length of its area vector, the volume of a solid is that enclosed by its faces'
/// triangles; never negative.
/// @throws InvalidInput as `cell_facets`
CellMeasures cell_measures(const Mesh& mesh);

/// Cells of the same dimension that have a facet in common: `cell_graph` without lines, vertices and strips, and
/// without the edges between a wall polygon and its solid.
/// @throws InvalidInput as `cell_graph`
Csr facet_graph(const Mesh& mesh);

struct FacetNeighbors {
    Csr cells;                  ///< `facet_graph`
    std::vector<double> sizes;  ///< for each entry the length or area of the common facets
};

/// Takes several times as long as `facet_graph`.
/// @throws InvalidInput as `cell_graph` and `cell_facets`
FacetNeighbors facet_neighbors(const Mesh& mesh);

}  // namespace meshard
