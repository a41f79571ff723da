// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/surface_geometry.h"

#include <cstdint>
#include <vector>

namespace meshard {

/// The point of a triangle that is nearest to a query.
struct NearestOnTriangle {
    double distance_squared = 0;
    Vector3 point{};
    Vector3 weights{};  ///< weights of the three corners; the point is their weighted sum
    int feature = 0;    ///< 0, 1, 2: that corner; 3, 4, 5: the edge from corner 0, 1, 2 to the next; 6: the inside
};

/// Computed in double precision; triangles without area are edges or points.
NearestOnTriangle nearest_on_triangle(const Vector3& query, const Vector3& a, const Vector3& b, const Vector3& c);

/// Triangles and the normals of their faces, edges and vertices. Vertices with equal coordinates count as one, so that
/// the triangles of an STL file are connected.
///
/// The normal of an edge is the sum of its triangles' unit normals, that of a vertex their sum weighted by the angles
/// there: the side on which a point is follows from the sign of one dot product, for a nearest point on a face, an edge
/// or a vertex (Baerentzen and Aanaes 2005, angle-weighted pseudonormals).
class TriangleSurface {
public:
    /// @param vertices  (n, 3)  @param faces  (m, 3), right-handed seen from outside
    /// @throws InvalidInput without faces, on a vertex that does not exist, and on coordinates that are not finite
    TriangleSurface(std::vector<double> vertices, std::vector<std::int64_t> faces);

    std::int64_t num_faces() const { return std::ssize(faces_) / 3; }
    std::int64_t vertex_id(std::int64_t face, int corner) const { return faces_[3 * face + corner]; }
    Vector3 corner(std::int64_t face, int corner) const;

    NearestOnTriangle nearest(std::int64_t face, const Vector3& query) const;

    /// Pseudonormal of a feature of a face, as NearestOnTriangle numbers them; not of unit length.
    const Vector3& feature_normal(std::int64_t face, int feature) const;

private:
    std::vector<double> vertices_;
    std::vector<std::int64_t> faces_;
    std::vector<Vector3> face_normals_, edge_normals_, vertex_normals_;
    std::vector<std::int32_t> edges_;    ///< (m, 3): indices into the edge normals
    std::vector<std::int32_t> same_as_;  ///< for each vertex the first one with its coordinates
};

}  // namespace meshard
